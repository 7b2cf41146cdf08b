"""Encoded observations against values written out by hand."""

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from agilerl_exp.errors import SpaceError
from agilerl_exp.networks.observation import ObservationCodec

BOX = spaces.Box(-1.0, 1.0, (3,), np.float32)


@pytest.mark.parametrize(
    ("space", "observation", "vector"),
    [
        (spaces.Discrete(4), 2, [0, 0, 1, 0]),
        (spaces.Discrete(4, start=5), 5, [1, 0, 0, 0]),
        (spaces.Discrete(4, start=-2), 1, [0, 0, 0, 1]),
        (spaces.MultiDiscrete([3, 2]), [2, 0], [0, 0, 1, 1, 0]),
        (spaces.MultiDiscrete([3, 2], start=[10, -1]), [11, 0], [0, 1, 0, 0, 1]),
        (spaces.MultiDiscrete([[1, 2], [2, 1]]), [[0, 1], [0, 0]], [1, 0, 1, 1, 0, 1]),
        (spaces.MultiBinary(3), [1, 0, 1], [1, 0, 1]),
        (spaces.MultiBinary([2, 2]), [[1, 0], [0, 1]], [1, 0, 0, 1]),
        (spaces.Box(-1.0, 1.0, (), np.float32), 0.5, [0.5]),
        (spaces.Box(-9, 9, (2, 2), np.int64), [[1, -2], [3, 4]], [1, -2, 3, 4]),
        (spaces.Box(-1.0, 1.0, (2,), np.float64), [0.25, 0.5], [0.25, 0.5]),
        (spaces.Box(0, 255, (2,), np.uint8), [7, 255], [7, 255]),
        (spaces.Tuple((spaces.Discrete(2), BOX)), (1, [0.1, 0.2, 0.3]), [0, 1, 0.1, 0.2, 0.3]),
        (
            spaces.Dict(b=spaces.Discrete(2), a=spaces.Dict(y=spaces.MultiBinary(2), x=spaces.Discrete(2))),
            {"a": {"x": 0, "y": [0, 1]}, "b": 1},
            None,
        ),
    ],
)
@pytest.mark.parametrize("leading", [(), (2,), (3, 2)])
def test_an_observation_becomes_this_vector(space, observation, vector, leading) -> None:
    def spread(part):
        if isinstance(part, dict):
            return {key: spread(value) for key, value in part.items()}
        if isinstance(part, tuple):
            return tuple(spread(value) for value in part)
        return np.broadcast_to(np.asarray(part), (*leading, *np.shape(part)))

    if vector is None:  # a Dict: the parts in the order of the space's own keys
        parts = {"b": [0, 1], "a": {"x": [1, 0], "y": [0, 1]}}
        vector = [
            number
            for key in space.spaces
            for number in (
                parts[key] if key == "b" else [n for k in space["a"].spaces for n in parts["a"][k]]
            )
        ]
    codec = ObservationCodec(space)
    out = codec.encode(spread(observation))
    assert codec.width == len(vector)
    assert out.dtype == np.float32 and out.shape == (*leading, len(vector))
    np.testing.assert_array_equal(out.reshape(-1, len(vector))[-1], np.array(vector, np.float32))


@pytest.mark.parametrize(
    ("space", "width"),
    [
        (spaces.Discrete(7), 7),
        (spaces.MultiDiscrete([3, 4]), 7),
        (spaces.MultiBinary(5), 5),
        (spaces.Tuple((spaces.Discrete(32), spaces.Discrete(11), spaces.Discrete(2))), 45),
        (
            spaces.Dict(
                a=spaces.Dict(b=spaces.Box(0.0, 1.0, (2,), np.float32), c=spaces.MultiBinary(3)),
                d=spaces.Discrete(3),
            ),
            8,
        ),
    ],
)
def test_widths(space: spaces.Space, width: int) -> None:
    assert ObservationCodec(space).width == width


def test_a_flat_float32_box_is_not_copied() -> None:
    batch = np.zeros((4, 2, 3), np.float32)
    assert ObservationCodec(BOX).encode(batch) is batch


def test_a_row_of_zeros_from_an_unused_slot_encodes_to_nothing() -> None:
    assert ObservationCodec(spaces.Discrete(3, start=4)).encode(np.array([0, 4])).tolist() == [
        [0, 0, 0],
        [1, 0, 0],
    ]


@given(st.data())
def test_encoding_a_batch_is_encoding_its_rows(data: st.DataObject) -> None:
    seed = data.draw(st.integers(0, 1000))
    space = spaces.Dict(
        p=spaces.MultiDiscrete([[2, 3], [1, 4]], start=[[0, 2], [-1, 1]]),
        q=spaces.Tuple((spaces.Box(-1.0, 1.0, (2, 2), np.float32), spaces.Discrete(3, start=1))),
        seed=seed,
    )
    codec = ObservationCodec(space)
    rows = [space.sample() for _ in range(3)]
    batch = {
        "p": np.stack([row["p"] for row in rows]),
        "q": tuple(np.stack([row["q"][i] for row in rows]) for i in range(2)),
    }
    encoded = codec.encode(batch)
    for row, vector in zip(rows, encoded, strict=True):
        np.testing.assert_array_equal(codec.encode(row), vector)
        assert vector[: 2 + 3 + 1 + 4].sum() == 4  # one mark a part


@pytest.mark.parametrize(
    ("space", "text"),
    [
        (spaces.Text(4), r"observation space Text cannot be encoded; use Box"),
        (spaces.Tuple((spaces.Discrete(2), spaces.Sequence(BOX))), r"observation space\[1\] Sequence cannot"),
        (spaces.Graph(BOX, None), r"Graph cannot be encoded"),
        (spaces.Box(0.0, 1.0, (0,), np.float32), r"is empty"),
    ],
)
def test_what_cannot_be_encoded_is_refused_in_one_line(space: spaces.Space, text: str) -> None:
    with pytest.raises(SpaceError, match=text) as caught:
        ObservationCodec(space)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("high", "dtype"), [(255, np.uint8), (255, np.float32), (1, np.float32), (10, np.uint8)]
)
def test_images_come_last_and_go_from_zero_to_one(high, dtype):
    cam = spaces.Box(0, high, (5, 6, 1), dtype)
    space = spaces.Dict(cam=cam, speed=spaces.Box(-1, 1, (2,)), depth=spaces.Box(-1, 1, (2, 2, 1)))
    codec = ObservationCodec(space)
    assert [part.path for part in codec.parts] == [("speed",), ("depth",), ("cam",)]
    assert [(part.start, part.planar, part.top) for part in codec.parts] == [
        (0, False, None),
        (2, True, None),
        (6, True, high),
    ]
    assert codec.vector_width == 6 and codec.width == 36
    pixels = (np.arange(30).reshape(5, 6, 1) % (high + 1)).astype(dtype)
    seen = {"cam": pixels, "speed": np.array([0.5, -0.5]), "depth": np.full((2, 2, 1), 0.25)}
    out = codec.encode(seen)
    assert out[:6].tolist() == [0.5, -0.5, 0.25, 0.25, 0.25, 0.25]
    assert out[6:] == pytest.approx(pixels.ravel().astype(float) / high)
    assert codec.encode(seen, images=False).tolist() == out[:6].tolist()
    assert pixels.max() > 1 or high == 1  # what was handed in is not changed


def test_what_is_no_image_keeps_its_values():
    for space in (
        spaces.Box(0, 255, (6,), np.uint8),
        spaces.Box(0, 255, (6, 6), np.uint8),
        spaces.Box(-1, 255, (6, 6, 1), np.float32),
        spaces.Box(0, np.inf, (6, 6, 1), np.float32),
        spaces.Box(0, 7, (6, 6, 1), np.int64),
    ):
        codec = ObservationCodec(space)
        assert codec.vector_width == codec.width
        assert (codec.encode(np.full(space.shape, 7, space.dtype)) == 7).all()
