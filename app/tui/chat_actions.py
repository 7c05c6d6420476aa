"""What a person can do in the chat, by slash command, by palette or with a message."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hearth.app.chats.export import to_json, to_markdown
from hearth.app.chats.imports import import_json
from hearth.app.sizes import format_size
from hearth.app.tui.attachments import count, expand, in_words
from hearth.app.tui.commands import Command
from hearth.app.tui.typed_path import typed_path
from hearth.backends.errors import HearthError, InvalidParameter

if TYPE_CHECKING:
    from hearth.app.presets import Preset
    from hearth.app.session.sessions import ChatSession
    from hearth.app.tui.screens.chat import ChatScreen


class ChatActions:
    """The actions of one chat screen. Each raises `HearthError` with what to do next.

    Attributes:
        folder: where relative paths begin.
    """

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen
        self.folder = Path.cwd()
        self._first: dict[str, Any] = {
            "model": screen.hearth.first_model,
            "system": "",
            "settings": {},
        }
        """What the next new chat begins with."""

    # ---- the chat that is shown, or the one to come

    def first_values(self) -> dict[str, Any]:
        """Model, system prompt and settings of a chat that is made now."""
        return dict(self._first)

    def first_model(self) -> str:
        """The model that a new chat begins with."""
        return str(self._first["model"]) or self._screen.services.settings.text("model")

    @property
    def _session(self) -> ChatSession:
        session = self._screen.session
        if session is None:
            raise InvalidParameter("chat", "There is no message yet.", "Write one first.")
        return session

    def _values(self) -> dict[str, Any]:
        """Settings of the chat that is shown, or of the one to come."""
        session = self._screen.session
        return dict(session.thread.settings if session is not None else self._first["settings"])

    async def _change(self, **fields: Any) -> None:
        """Change the chat that is shown, or the one to come."""
        session = self._screen.session
        if session is not None:
            await session.change(**fields)
        else:
            self._first.update({k: v for k, v in fields.items() if k in self._first})
        self._screen.show_meter()

    async def _set(self, **values: Any) -> None:
        await self._change(settings={**self._values(), **values})

    # ---- commands

    async def run(self, command: Command) -> None:
        """Do a slash command."""
        await getattr(self, "_" + command.name.replace("-", "_"))(command.argument)

    async def _help(self, _: str) -> None:
        self._screen.hearth.action_help()

    async def _new(self, _: str) -> None:
        await self._screen.leave()

    async def _model(self, name: str) -> None:
        from hearth.app.tui.screens.dialogs import PickOne

        services = self._screen.services
        if not name:
            found = await services.index.models()
            name = await self._ask(PickOne("Model", [model.name for model in found])) or ""
        if name:
            resolved = await services.index.resolve(name)
            chosen = str(resolved.path) if resolved.origin == "path" else resolved.name
            await self._change(model=chosen)

    async def _system(self, text: str) -> None:
        if not text:
            session = self._screen.session
            now = session.thread.system if session is not None else self._first["system"]
            answer = await self._ask_text("System prompt", now)
            if answer is None:
                return
            text = answer
        await self._change(system=text)

    async def _think(self, argument: str) -> None:
        await self._set(thinking={"on": True, "off": False}.get(argument))

    async def _set_value(self, argument: str) -> None:
        from hearth.app.session.services import layer_of
        from hearth.app.settings_keys import ALL

        name, _, text = argument.partition(" ")
        key = ALL.get(name)
        try:
            value = text if key is None else key.parse(text)
        except ValueError as error:
            raise InvalidParameter(name, f"{name}: {error}.", "Give another value.") from error
        layer_of({name: value})
        await self._set(set={**self._values().get("set", {}), name: _as_json(value)})

    async def _settings(self, _: str) -> None:
        from hearth.app.tui.screens.sampling import SamplingScreen

        model = self._screen.session.model if self._screen.session else self.first_model()
        answer = await self._ask(
            SamplingScreen(self._values(), self._screen.services.settings, model)
        )
        if answer is not None:
            await self._change(settings=answer)

    async def _json(self, argument: str) -> None:
        await self._set(constraint=None if argument == "off" else {"kind": "json", "source": ""})

    async def _schema(self, path: str) -> None:
        text = await asyncio.to_thread(_read, typed_path(path, self.folder))
        try:
            json.loads(text)
        except ValueError as error:
            raise InvalidParameter(
                "schema", f"{path} is no JSON: {error}.", "Correct the file."
            ) from error
        await self._set(constraint={"kind": "json_schema", "source": text})

    async def _regex(self, pattern: str) -> None:
        await self._set(constraint={"kind": "regex", "source": pattern} if pattern else None)

    async def _choice(self, argument: str) -> None:
        texts = [text.strip() for text in argument.split("|") if text.strip()]
        source = json.dumps(texts, ensure_ascii=False)
        await self._set(constraint={"kind": "choice", "source": source} if texts else None)

    async def _preset(self, name: str) -> None:
        from hearth.app.tui.screens.presets import PresetsScreen

        presets = self._screen.hearth.presets
        screen = PresetsScreen(presets, self._as_preset("this chat"))
        chosen = presets.get(name) if name else await self._ask(screen)
        if chosen is not None:
            settings = {**chosen.settings, "preset": chosen.name}
            await self._change(model=chosen.model, system=chosen.system, settings=settings)

    async def _save_preset(self, name: str) -> None:
        name = name or await self._ask_line("Name of the preset")
        if name:
            save = self._screen.hearth.presets.save
            kept = await asyncio.to_thread(save, self._as_preset(name))
            self._screen.tell(f"Kept as {kept.name}.")

    def _as_preset(self, name: str) -> Preset:
        """Model, system prompt and settings of the chat that is shown, or of the one to come."""
        from hearth.app.presets import Preset

        session = self._screen.session
        if session is None:
            model, system = str(self._first["model"]), str(self._first["system"])
        else:
            model, system = session.thread.model, session.thread.system
        return Preset(name, system, model, self._values())

    async def _rename(self, title: str) -> None:
        await self.on_thread(self._session.thread.id, "rename", title)

    async def _pin(self, _: str) -> None:
        await self.on_thread(self._session.thread.id, "pin")

    async def _archive(self, _: str) -> None:
        await self.on_thread(self._session.thread.id, "archive")

    async def _clone(self, _: str) -> None:
        await self.on_thread(self._session.thread.id, "clone")

    async def _delete(self, _: str) -> None:
        await self.on_thread(self._session.thread.id, "delete")

    async def _export(self, argument: str) -> None:
        await self.on_thread(self._session.thread.id, "export", argument)

    async def _import(self, path: str) -> None:
        text = await asyncio.to_thread(_read, typed_path(path, self.folder))
        try:
            data = json.loads(text)
        except ValueError as error:
            raise InvalidParameter(
                "import", f"{path} is no JSON: {error}.", "Import what /export json wrote."
            ) from error
        thread = await asyncio.to_thread(import_json, self._screen.services.chats, data)
        await self._screen.open(thread.id)
        await self._screen.refresh_list()

    async def _search(self, query: str) -> None:
        from hearth.app.tui.screens.search import SearchScreen

        hit = await self._ask(SearchScreen(self._screen.services.chats, query))
        if hit is not None:
            await self._screen.open(hit.thread_id)
            session = self._session
            if hit.message_id and all(one.id != hit.message_id for one in session.messages):
                await session.select(hit.message_id)
                await self._screen.open(hit.thread_id)
            if hit.message_id:
                await self._screen.transcript.jump_to(hit.message_id)

    async def _compare(self, model: str) -> None:
        from hearth.app.tui.screens.compare import CompareScreen

        screen = self._screen
        left = screen.session.model if screen.session is not None else self.first_model()
        names = [found.name for found in await screen.services.index.models()]
        await self._ask(CompareScreen(screen.services, names, left, model))

    async def _prompt(self, _: str) -> None:
        from hearth.app.tui.screens.prompt_view import PromptView

        session = self._session
        asking = await session.asking(session.messages[session.left_out :])
        await self._ask(PromptView(asking.backend, asking.request, asking.info.context))

    async def _stats(self, _: str) -> None:
        self._screen.toggle_class("-no-numbers")

    async def _retry(self, _: str) -> None:
        await self.on_message(self._last(), "regenerate")

    async def _continue(self, _: str) -> None:
        await self.on_message(self._last(), "continue")

    async def _edit(self, _: str) -> None:
        asked = [one.id for one in self._session.messages if one.role == "user"]
        if asked:
            await self.on_message(asked[-1], "edit")

    async def _copy(self, _: str) -> None:
        await self.on_message(self._last(), "copy")

    async def _stop(self, _: str) -> None:
        self._session.stop()

    async def _quit(self, _: str) -> None:
        await self._screen.hearth.action_leave()

    async def _go(self, name: str) -> None:
        self._screen.hearth.action_go(name)

    def _last(self) -> str:
        messages = self._session.messages
        if not messages:
            raise InvalidParameter("chat", "There is no message yet.", "Write one first.")
        return messages[-1].id

    # ---- messages and chats

    async def on_message(self, message: str, action: str) -> None:
        """Do `action` (see `MessageView.Action`) with a message."""
        session = self._session
        found = next((one for one in session.messages if one.id == message), None)
        if found is None:
            return
        if action == "edit":
            text = await self._ask_text(f"Edit ({found.role})", found.content)
            if text is not None and text != found.content:
                await session.edit(message, text)
        elif action == "regenerate":
            await session.regenerate(message)
        elif action == "continue":
            await session.resume(message)
        elif action == "copy":
            self._screen.app.copy_to_clipboard(found.content)
            self._screen.tell("Copied.")
        elif action in ("previous", "next"):
            await session.step(message, 1 if action == "next" else -1)
        elif action == "clone":
            clone = await session.clone(message)
            await self._screen.open(clone.id)
            await self._screen.refresh_list()
        elif action == "delete_branch":
            question = "Delete this message and everything after it?"
            if await self._confirmed(question, "Other branches stay."):
                await session.delete_branch(message)

    async def on_thread(self, thread: str, action: str, argument: str = "") -> None:
        """Do `action` (see `ThreadList.Asked`) with a chat."""
        screen = self._screen
        if action == "open":
            await screen.open(thread)
            screen.prompt.focus()
            return
        session = await screen.sessions.open(thread)
        if action == "rename":
            title = argument or await self._ask_line("Title", session.thread.title)
            if title:
                await session.change(title=title)
        elif action == "pin":
            await session.change(pinned=not session.thread.pinned)
        elif action == "archive":
            await session.change(archived=not session.thread.archived)
        elif action == "clone":
            await screen.open((await session.clone()).id)
        elif action == "export":
            await self._write_out(thread, argument)
        elif action == "delete":
            title = session.thread.title or "this chat"
            if await self._confirmed(f"Delete “{title}”?", "It cannot be brought back."):
                if screen.session is not None and screen.session.thread.id == thread:
                    await screen.leave()
                await screen.sessions.delete(thread)
        await screen.refresh_list()

    async def _write_out(self, thread: str, argument: str) -> None:
        kind, _, rest = argument.partition(" ")
        if kind not in ("markdown", "json"):
            kind, rest = "json" if argument.endswith(".json") else "markdown", argument
        suffix = ".json" if kind == "json" else ".md"
        rest = rest.strip() or await self._ask_line("File", f"chat{suffix}")
        if not rest:
            return
        path = typed_path(rest, self.folder)
        chats = self._screen.services.chats

        def write() -> int:
            if kind == "json":
                text = json.dumps(to_json(chats, thread), ensure_ascii=False, indent=1)
            else:
                text = to_markdown(chats, thread)
            try:
                with path.open("x", encoding="utf-8") as file:
                    return file.write(text)
            except OSError as error:
                raise InvalidParameter(
                    "path", f"{path}: {error.strerror}.", "Choose another file."
                ) from error

        size = await asyncio.to_thread(write)
        self._screen.tell(f"Written to {path} ({format_size(size)}).")

    async def count(self, text: str) -> tuple[int, str]:
        """How many tokens a draft has, and that in words; 0 while no model is loaded for it."""
        session = self._screen.session
        if session is None or session.info is None or not text.strip():
            return 0, ""
        try:
            expanded = await asyncio.to_thread(expand, text, self.folder)
            services = self._screen.services
            chosen = await services.choose(session.thread.model, {})
            tokens = await count(await services.host.backend(chosen.spec), expanded.text)
        except HearthError as error:
            return 0, error.message
        files = in_words(expanded.files)
        counted = f"{tokens:,} token" + ("" if tokens == 1 else "s")
        return tokens, counted + (f", {files}" if files else "")

    # Dialogs are imported when somebody is asked, which is not before the first paint.

    async def _ask(self, screen: Any) -> Any:
        return await self._screen.app.push_screen_wait(screen)

    async def _confirmed(self, question: str, detail: str) -> bool:
        from hearth.app.tui.screens.dialogs import Confirm

        return bool(await self._ask(Confirm(question, detail)))

    async def _ask_line(self, title: str, value: str = "") -> str:
        from hearth.app.tui.screens.dialogs import AskLine

        return await self._ask(AskLine(title, value)) or ""

    async def _ask_text(self, title: str, text: str) -> str | None:
        from hearth.app.tui.screens.dialogs import EditText

        return cast("str | None", await self._ask(EditText(title, text)))


def _as_json(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParameter("path", f"{path} cannot be read: {error}.", "Check it.") from error
