import json

from pipeline import bench, cli


def test_bench_prints_a_row_for_each_load_and_writes_every_round(tmp_path, capsys, launcher):
    path = tmp_path / "speed.json"
    arguments = ["bench", "--quick", "--rounds", "1", "--workers", "1", "--json", str(path)]
    assert cli.main(arguments) == 0
    out = capsys.readouterr().out
    body = json.loads(path.read_text())
    assert [one["load"] for one in body["loads"]] == [one.name for one in bench.loads(quick=True)]
    for one in body["loads"]:
        assert one["load"] in out
        assert one["floor"] > 0
        assert set(one["rates"]) == set(bench.ways(1))
        assert all(len(rates) == 1 and rates[0] > 0 for rates in one["rates"].values())
    assert body["machine"]["versions"]["numpy"] in out
