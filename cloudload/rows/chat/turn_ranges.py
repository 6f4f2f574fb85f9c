"""Find the turns of a rendered conversation, and prove where each begins and ends.

    turn    from the end of the generation prompt through the token that ends the turn

    1. compare     the text is exactly the template's strings and the messages' contents
    2. mark        a second rendering, with a private character at both ends of what others wrote,
                   shows where that is; the template's strings must surround it
    3. prefix      the rendering of the messages before the turn, with a generation prompt, must be
                   a prefix of the text, and so must be that of the messages up to its end

Each is an exact comparison, and the first that succeeds is taken. The first needs no other
rendering. It succeeds for conversations of plain texts, the second for tool calls and reasoning.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass

from cloudload.rows.chat.conversation import ASSISTANT, Message, UnknownTurnError
from cloudload.rows.chat.literals import Names, Range, choose_private, count_equal
from cloudload.rows.chat.seams import END, Render, Seams, without_reasoning

_SHOWN = 60


@dataclass(frozen=True)
class Turn:
    """A turn: characters `start` to `stop`, of which those from `eot` are the token at its end."""

    start: int
    eot: int
    stop: int


@dataclass(frozen=True)
class RenderedConversation:
    """A conversation with its text, and what is known of its template."""

    text: str
    messages: list[Message]
    render: Render
    seams: Seams
    names: Names
    """The names of the tokenizer's added tokens."""
    tags: tuple[str, str]
    """The text before and after reasoning."""
    literal: list[Range]
    """The names in the text that users wrote."""

    @functools.cached_property
    def last(self) -> int:
        """The number of the last assistant message, or -1."""
        turns = (n for n, each in enumerate(self.messages) if each["role"] == ASSISTANT)
        return max(turns, default=-1)

    def role(self, number: int) -> str:
        """The role of a message, or `END` after the last one."""
        return self.messages[number]["role"] if number < len(self.messages) else END

    @functools.cached_property
    def contents(self) -> dict[int, Range]:
        """Where the contents of messages that are not turns are, without whitespace around them.
        Only those that were found."""
        return _locate_contents(self)


def find_turns(rendered: RenderedConversation, numbers: Iterable[int]) -> list[Turn]:
    """Find the turns of assistant messages, by their numbers, ascending.

    Raises `ChatError` if the position of a turn cannot be proved.
    """
    found = compare_contents(rendered)
    if found is not None:
        return [found[number] for number in numbers]
    return [
        _find_end(rendered, number, find_start(rendered, number), stop)
        for number, stop in _with_stops(rendered, numbers)
    ]


def compare_contents(rendered: RenderedConversation) -> dict[int, Turn] | None:
    """Return all turns if a text consists of the template's strings and of contents, else None."""
    text, seams = rendered.text, rendered.seams
    turns: dict[int, Turn] = {}
    position = _skip(text, 0, seams.first.get(rendered.role(0)))
    last = rendered.last
    for number, message in enumerate(rendered.messages[: last + 1]):
        role, following = message["role"], rendered.role(number + 1)
        if role == ASSISTANT:
            ending = seams.endings.get(following)
            start = position
            position = _skip(text, position, seams.fills.get(following))
            if ending is None:
                return None
            position = _skip_content(text, position, message, ending.text)
            end = position - len(ending.text)
            turns[number] = Turn(start, end + ending.eot, end + ending.stop)
        elif following == ASSISTANT:
            prompts = seams.prompts if number + 1 == last else seams.early_prompts
            position = _skip_content(text, position, message, prompts.get(role))
        else:
            position = _skip_content(text, position, message, seams.between.get((role, following)))
        if position < 0:
            return None
    is_whole = last < len(rendered.messages) - 1 or position == len(text)
    return turns if is_whole else None


def _skip(text: str, position: int, expected: str | None) -> int:
    """Return the position after an expected string, or -1 if it is not there."""
    if expected is None or position < 0 or not text.startswith(expected, position):
        return -1
    return position + len(expected)


def _skip_content(text: str, position: int, message: Message, seam: str | None) -> int:
    """Return the position after a message's content and the string that follows, or -1.

    Many templates remove whitespace around contents.
    """
    content = message.get("content")
    if position < 0 or seam is None or not isinstance(content, str):
        return -1
    for written in (content, content.strip(), content.rstrip(), content.lstrip()):
        if text.startswith(written, position) and text.startswith(seam, position + len(written)):
            return position + len(written) + len(seam)
    return -1


def _locate_contents(rendered: RenderedConversation) -> dict[int, Range]:
    numbers = [
        number
        for number, message in enumerate(rendered.messages)
        if message["role"] != ASSISTANT and isinstance(message["content"], str)
        if message["content"].strip()
    ]
    if not numbers:
        return {}
    private = choose_private(rendered.text, 2 * len(numbers))
    marks = {number: private[2 * n : 2 * n + 2] for n, number in enumerate(numbers)}
    marked = [
        {**message, "content": _mark(message["content"], *marks[number])}
        if number in marks
        else message
        for number, message in enumerate(rendered.messages)
    ]
    text = rendered.render(marked, False)
    pieces = re.split(f"([{private}])", text or "")
    if "".join(pieces[::2]) != rendered.text or len(set(pieces[1::2])) < len(pieces) // 2:
        return {}
    stops = itertools.accumulate(map(len, pieces[::2]))
    places = dict(zip(pieces[1::2], stops, strict=False))
    return {
        number: (places[pair[0]], places[pair[1]])
        for number, pair in marks.items()
        if pair[0] in places and pair[1] in places
    }


def _mark(content: str, before: str, after: str) -> str:
    """Put a character on both sides of a content, but inside the whitespace around it, because many
    templates remove this whitespace."""
    inner = content.strip()
    start = content.index(inner)
    return content[:start] + before + inner + after + content[start + len(inner) :]


def find_start(rendered: RenderedConversation, number: int) -> int:
    """Return where the generation prompt before a message ends.

    A template may leave reasoning out of turns before the last one, though its prompt opens the
    reasoning. The prompt of such a turn ends before the reasoning's tags.
    """
    text, before = rendered.text, number - 1
    _, stop = rendered.contents.get(before, (0, 0))
    prompt = rendered.seams.prompts.get(rendered.role(before)) if stop else None
    if prompt is not None:
        content = rendered.messages[before]["content"]
        space = content[len(content.rstrip()) :]
        header = without_reasoning(prompt, rendered.tags) if number < rendered.last else prompt
        for expected in (space + prompt, prompt, space + header, header):
            if text.startswith(expected, stop):
                return stop + len(expected)
    asked = rendered.render(rendered.messages[:number], True)
    if asked is not None and text.startswith(asked):
        return len(asked)
    if asked is not None and number < rendered.last:
        header = without_reasoning(asked, rendered.tags)
        if header != asked and text.startswith(header):
            return len(header)
    raise _explain_start(rendered, number, asked)


def _with_stops(
    rendered: RenderedConversation, numbers: Iterable[int]
) -> Iterable[tuple[int, int | None]]:
    """Yield turns with the position of the next message's content, if it was found."""
    for number in numbers:
        yield number, rendered.contents.get(number + 1, (None, None))[0]


def _find_end(rendered: RenderedConversation, number: int, start: int, stop: int | None) -> Turn:
    """Find the end of a turn. `stop` is the position of the next message's content, if known."""
    text, following = rendered.text, rendered.role(number + 1)
    ending = rendered.seams.endings.get(following)
    if following == END:
        stop = len(text)
    if stop is not None and ending is not None and (ending.stop or following == END):
        space = "" if following == END else _leading_space(rendered.messages[number + 1])
        for skipped in dict.fromkeys((space, "")):
            end = stop - len(skipped) - len(ending.text)
            if start <= end and text.startswith(ending.text + skipped, end):
                return Turn(start, end + ending.eot, end + ending.stop)
    if (found := _compare_turn(rendered, number, start)) is not None:
        return found
    if following != END:
        answered = rendered.render(rendered.messages[: number + 1], False)
        if answered is None or not text.startswith(answered):
            raise _explain_end(number)
        stop = len(answered)
    return _trim_end(rendered, start, stop or start)


def _compare_turn(rendered: RenderedConversation, number: int, start: int) -> Turn | None:
    """Return a turn if it is only its content and the token at its end."""
    for role, ending in rendered.seams.endings.items():
        closing = ending.text[: ending.stop]
        for fill in dict.fromkeys((rendered.seams.fills.get(role, ""), "")):
            position = _skip(rendered.text, start, fill)
            stop = _skip_content(rendered.text, position, rendered.messages[number], closing)
            if stop >= 0 and closing:
                return Turn(start, stop - ending.stop + ending.eot, stop)
    return None


def _leading_space(message: Message) -> str:
    content = message["content"]
    return content[: len(content) - len(content.lstrip())] if isinstance(content, str) else ""


def _trim_end(rendered: RenderedConversation, start: int, stop: int) -> Turn:
    """Return a turn whose text, with what separates it from the next, is known to end at `stop`."""
    text, ending = rendered.text, rendered.seams.endings.get(END)
    if ending is not None and ending.text and text.endswith(ending.text, start, stop):
        end = stop - len(ending.text)
        return Turn(start, end + ending.eot, end + ending.stop)
    end = start + len(text[start:stop].rstrip())
    eot = rendered.names.match_end(text, start, end)
    if eot == end or any(low <= eot < high for low, high in rendered.literal):
        # the model may end its turn with the first token of the next message
        after = rendered.names.match(text, stop)
        is_next = ending is not None and not ending.stop
        return Turn(start, stop, after if is_next else stop)
    return Turn(start, eot, end)


def _explain_start(
    rendered: RenderedConversation, number: int, asked: str | None
) -> UnknownTurnError:
    if asked is None:
        reason = "refuses to render the messages before it. Remove the message"
    else:
        common = count_equal(asked, rendered.text)
        shown = slice(max(common - _SHOWN // 2, 0), common + _SHOWN)
        last = "train='last', or " if number < rendered.last else ""
        reason = (
            f"asks for it with …{asked[shown]!r}, but writes …{rendered.text[shown]!r}. Use {last}"
            "template_kwargs that make both equal, such as {'enable_thinking': False} or True"
        )
    return UnknownTurnError(
        f"the turn of message {number} cannot be located, because the template {reason}"
    )


def _explain_end(number: int) -> UnknownTurnError:
    return UnknownTurnError(
        f"the end of the turn of message {number} cannot be located, because the template writes "
        "the turn differently when it is the last one. Use train='last'"
    )
