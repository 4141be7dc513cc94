"""Cases whose whole test stands elsewhere already and would be dear to run twice."""

COVERED: dict[str, list[str]] = {
    "H043": [
        "tests/pipeline/test_memory.py::test_a_pass_over_packed_names_writes_no_page_of_a_worker",
        "tests/pipeline/test_memory.py::test_a_table_of_names_is_there_once_for_all_workers",
        "tests/pipeline/test_memory.py::test_the_paths_of_a_folder_are_lent_to_the_workers",
    ],
}
