import assert from "node:assert/strict";
import test from "node:test";
import { setting } from "../static/app/format.js";

test("settings are written like other durations", () => {
  for (const [text, want] of [
    ["24h0m0s", "1 d"], ["1h30m0s", "1 h 30 min"], ["2m0s", "2 min"], ["90s", "1 min 30 s"], ["1.5s", "1.5 s"],
    ["168h0m0s", "7 d"], ["soon", "soon"], ["", ""],
  ]) {
    assert.equal(setting(text), want, text);
  }
});
