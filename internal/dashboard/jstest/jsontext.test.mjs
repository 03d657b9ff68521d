import assert from "node:assert/strict";
import test from "node:test";
import { at, parse, write } from "../static/app/parts/jsontext.js";

test("what is written is what was read, with its digits and the order of its members", () => {
  const text = `{"b":[1,2.50,-3e+7,{"10":"x\\"y\\\\","9":12345678901234567890,"a":1,"a":2}],"e":{},"f":[],"s":"\\u0000\\ud83d\\ude00","n":null}`;
  const pretty = write(parse(text));
  assert.deepEqual(JSON.parse(pretty), JSON.parse(text));
  assert.match(pretty, /2\.50,\n.*-3e\+7,/);
  assert.match(pretty, /"10": .*\n.*"9": 12345678901234567890,\n.*"a": 1,\n.*"a": 2/);
  assert.equal(write(parse(pretty)), pretty);
});

test("a value is found by its path", () => {
  const tree = parse(`{"items":[{"steps":[{"result":{"n":1.0}}]}]}`);
  assert.equal(at(tree, "items", 0, "steps", 0, "result", "n").value, "1.0");
  assert.equal(at(tree, "items", 1, "steps"), undefined);
});

test("depth does not matter", () => {
  const deep = parse("[".repeat(50_000) + "]".repeat(50_000));
  assert.equal(write(deep).split("\n").length, 2 * 50_000 - 1);
});

test("what is not JSON is refused, with its place", () => {
  for (const bad of ["", "{", "[1,]", `{"a"}`, `{"a":1,}`, "[1 2]", "1 2", "tru", `"open`, `"\\"`, "{1:2}", "nul", "+1", "[,1]"]) {
    assert.throws(() => parse(bad), SyntaxError, bad);
    assert.throws(() => JSON.parse(bad), SyntaxError, bad);
  }
  assert.throws(() => parse(`{"a":!}`), /character 6/);
});
