"""Cases whose whole test stands elsewhere already and would be dear to run twice."""

COVERED = {
    # Every kind of exception, in every mode: type, message, traceback, item, path.
    "H035": [
        "tests/pipeline/test_sample_errors.py::test_every_kind_of_exception_is_told_with_its_type_message_and_sample",
        "tests/pipeline/test_sample_errors.py::test_a_message_of_ten_million_characters_arrives_cut",
        "tests/pipeline/test_sample_errors.py::test_the_error_is_of_the_type_that_was_raised_too",
    ],
    # Ctrl-C to the whole group, while workers start, in the middle, and twice.
    "H036": [
        "tests/test_determinism.py::test_ctrl_c_ends_with_one_keyboard_interrupt_and_nothing_left",
        "tests/test_determinism.py::test_ctrl_c_while_workers_start_ends_cleanly",
        "tests/faults/test_signals.py::test_an_interrupt_of_the_whole_group",
    ],
    # The parent gets SIGKILL, while workers start too.
    "H037": [
        "tests/faults/test_signals.py::test_a_parent_that_is_killed",
        "tests/test_determinism.py::test_after_sigkill_of_the_loaders_process_nothing_is_left",
    ],
}
