package main

import "testing"

func TestRunGroups(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.echo(nil)
	b.want(b.pipe("id,branch\n1,north\n2,north\n3,\x1b[31m\n", "run", "start", "--endpoint", "echo", "--name",
		"grouped", "--items", "-"), 0)
	b.want(b.tranche("run", "watch", "grouped"), 0)
	b.want(b.tranche("run", "groups", "grouped", "--by", "branch"), 0, "BRANCH", "north", "2", "100%")
	b.want(b.tranche("run", "groups", "grouped", "--by", "other"), 0, "(none)")
	b.want(b.tranche("run", "groups", "grouped"), 1, "--by FIELD is missing", "branch, id")
}
