"""espeak-ng through ctypes: text to 16-bit samples, the same bytes for the same voice and text.

Library and voices come from the package `espeakng-loader`; nothing of the system is used. espeak-ng keeps state between
utterances (phase, flutter and noise go on where the last utterance left them, even after `espeak_Terminate`), so the
library is unloaded and loaded afresh, and its random numbers seeded, for every utterance: 3.5 ms each.
Constants are those of espeak-ng's `speak_lib.h`.
"""

import ctypes
from _ctypes import dlclose
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

SAMPLE_RATE = 22050  # Hz, of every voice

_SYNCHRONOUS = 2  # AUDIO_OUTPUT_SYNCHRONOUS: samples go to the callback, nothing is played
_DONT_EXIT = 0x8000  # espeakINITIALIZE_DONT_EXIT: report a missing data folder instead of ending the process
_UTF8 = 1
_RATE, _PITCH, _RANGE, _WORD_GAP = 1, 3, 4, 7
_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


@dataclass(frozen=True)
class Voice:
    """`name` is language+variant, `rate` words a minute, `pitch` and `pitch_range` 0-99, `word_gap` units of 10 ms."""

    name: str
    rate: int
    pitch: int
    pitch_range: int
    word_gap: int = 0


def speak(text: str, voice: Voice, seed: int = 0) -> NDArray[np.int16]:
    """The samples of `text`, at `SAMPLE_RATE`.

    Raises ValueError for a voice that espeak-ng does not have, RuntimeError where it cannot start.
    """
    import espeakng_loader

    parts: list[NDArray[np.int16]] = []

    @_CALLBACK  # type: ignore[untyped-decorator,unused-ignore]
    def receive(samples: Any, number: int, _: Any) -> int:
        if number > 0:
            parts.append(np.ctypeslib.as_array(samples, (number,)).copy())
        return 0

    library = ctypes.CDLL(espeakng_loader.get_library_path())
    try:
        rate = library.espeak_Initialize(_SYNCHRONOUS, 0, str(espeakng_loader.get_data_path()).encode(), _DONT_EXIT)
        if rate != SAMPLE_RATE:
            raise RuntimeError(
                f"espeak-ng answers {rate} where its rate of {SAMPLE_RATE} Hz is due; reinstall espeakng-loader."
            )
        library.espeak_ng_SetRandSeed(ctypes.c_long(seed))
        library.espeak_SetSynthCallback(receive)
        if library.espeak_SetVoiceByName(voice.name.encode()) != 0:
            raise ValueError(
                f"espeak-ng has no voice {voice.name!r}; name one of its languages and variants, as en-us+f3."
            )
        settings = {_RATE: voice.rate, _PITCH: voice.pitch, _RANGE: voice.pitch_range, _WORD_GAP: voice.word_gap}
        for parameter, value in settings.items():
            library.espeak_SetParameter(parameter, value, 0)
        content = text.encode() + b"\0"
        library.espeak_Synth(content, ctypes.c_size_t(len(content)), 0, 1, 0, _UTF8, None, None)
        library.espeak_Synchronize()
    finally:
        library.espeak_Terminate()
        dlclose(library._handle)
    return np.concatenate(parts) if parts else np.zeros(0, np.int16)
