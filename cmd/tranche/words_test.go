package main

import "testing"

// An empty word, or one that is no text, is a mistake in the command line, whatever the server would make of it. There
// is no server here.
func TestWordsThatSayNothingAreRefused(t *testing.T) {
	t.Parallel()
	b := &bench{T: t}
	try := func(text string, args ...string) {
		t.Helper()
		b.want(runProgram(t, nil, "", args...), 2, text)
	}
	try("<run> is empty", "run", "show", "")
	try("<run> is empty", "run", "rerun", "", "--failed")
	try("<key> is empty", "run", "item", "last", "")
	try("--against is empty", "run", "report", "last", "--against", "")
	try("--item is empty", "run", "explain", "last", "--item=")
	try("--max-failed is empty", "run", "set", "last", "--max-failed", "")
	try("--idempotency-key is empty", "run", "start", "--endpoint", "e", "--items", "-", "--idempotency-key", "")
	try("<name> is empty", "endpoints", "set", "", "--rate", "5")
	try("<plan> is empty", "plan", "show", "")
	try("name a run, or give --all", "run", "cancel", "")
	try("is not UTF-8; what is not text", "run", "rerun", "last", "--key", "\xff")
	try("--rate: NaN is not within", "run", "set", "last", "--rate", "NaN")
	try("from 0.001 to 10000000, or none", "endpoints", "set", "e", "--rate", "1e308")
	try("versions are not deleted one by one", "plan", "delete", "year-end@1")
	try("is empty; it must be YAML", "plan", "apply", "-")
	try(`{"error":"<run> is empty`, "run", "show", "", "--json")
	try(`"exit":2}`, "run", "--json", "shwo")
	b.want(runProgram(t, nil, "", "help", "run", "list"), 0, "Usage: tranche run list", "--result")
	b.want(runProgram(t, nil, "", "--version"), 0, "tranche ")
	b.want(runProgram(t, nil, "", "completion", "zsh"), 0, "bashcompinit", " tranche")
	try("is a directory", "plan", "apply", t.TempDir())
}
