"""What a sweep varies becomes columns, an axis and colours; what a point is called."""

from sweeps.columns import axis_and_group, column_names, leaves, point_name, varied_keys

PAIRS = [
    {"model": {"num_layers": depth, "hidden_size": width}, "seed_everything": seed}
    for depth, width in ((8, 1632), (24, 928))
    for seed in (0, 1)
]


def test_a_pair_is_two_columns_and_width_follows_depth() -> None:
    assert leaves(PAIRS[0]) == {"model.num_layers": 8, "model.hidden_size": 1632, "seed_everything": 0}
    keys = varied_keys(PAIRS)
    assert keys == ["model.num_layers", "model.hidden_size"]
    assert column_names(keys) == {"num_layers": "model.num_layers", "hidden_size": "model.hidden_size"}
    rows = [{"num_layers": 8, "hidden_size": 1632}, {"num_layers": 24, "hidden_size": 928}]
    axis, group = axis_and_group(rows, ["num_layers", "hidden_size"])
    assert (axis.column, group) == ("num_layers", None)
    assert point_name(PAIRS[0], keys) == "num_layers-8_hidden_size-1632_seed-0"


def test_a_key_whose_last_word_is_taken_keeps_its_whole_name() -> None:
    keys = ["model.features.normalization", "model.normalization", "trainer.seed"]
    assert list(column_names(keys)) == ["normalization", "model.normalization", "trainer.seed"]


def test_words_make_an_axis_of_words_and_the_rest_colours() -> None:
    rows = [
        {"activation": activation, "skip_placement": place}
        for activation in ("relu", "tanh")
        for place in ("after", "before")
    ]
    axis, group = axis_and_group(rows, ["activation", "skip_placement"])
    assert (axis.column, axis.numeric, group) == ("activation", False, "skip_placement")
    numbers = [{"activation": "relu", "dropout": 0.1}, {"activation": "relu", "dropout": 0.2}]
    assert axis_and_group(numbers, ["activation", "dropout"])[0].column == "dropout"


def test_three_keys_are_joined_into_variants() -> None:
    rows = [{"global_batch_size": b, "rate": r, "decay": d} for b in (4, 8) for r in (1, 2) for d in (3, 4)]
    axis, group = axis_and_group(rows, ["rate", "global_batch_size", "decay"])
    assert (axis.noun, group) == ("algorithmic batch", "variant")
    assert rows[0]["variant"] == "rate 1, decay 3"


def test_a_name_is_a_folders_name() -> None:
    point = {"data.path": "/a b/c", "model.x": None, "recipe.rate": 3.0e-4}
    assert point_name(point, list(point)) == "path-a-b-c_x-None_rate-0.0003"
    assert point_name({"a": 1}, []) == "run"
