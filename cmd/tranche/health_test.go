package main

import (
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func TestWhatPeopleMustDoByHand(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.wantSoon([]string{"nodes"}, "NODE", "live", "leader")
	b.want(b.tranche("nodes", "--json"), 0, `"nodes": [`)
	b.wantSoon([]string{"health", "--json"}, `"conditions": `) // critical as long as no node leads
	b.want(b.tranche("health", "aside", "failed_items", "--reason", "known"), 2, "--for")
	b.want(b.tranche("health", "aside", "failed_items", "--for", "8h"), 2, "--reason")
	b.want(b.tranche("health", "aside", "failed_items", "--for", "8h", "--reason", "known"), 1, "tranche health")
	if _, err := testenv.Connect(t, b.database).Exec(t.Context(), `INSERT INTO dead_letter (id, msg_id, endpoint, cause)
		VALUES (gen_random_uuid(), '1', 'lost', 'gave_up')`); err != nil {
		t.Fatal(err)
	}
	b.wantSoon([]string{"health", "--json"}, `"kind": "dead_letters"`)
	b.want(b.tranche("health", "take", "dead_letters", "lost"), 0, "dead_letters lost is taken by ")
	b.wantSoon([]string{"health"}, "WARNING 1 dead letter of lost", "taken")
	b.want(b.tranche("health", "aside", "dead_letters", "--for-good", "--reason", "of the test"), 0, "for good",
		"tranche health back dead_letters")
	shown := b.wantSoon([]string{"health"}, "PUT ASIDE", "of the test")
	// The disk may be full.
	if before, _, _ := strings.Cut(shown.out, "PUT ASIDE"); strings.Contains(before, "dead letter") {
		t.Errorf("it is told all the same:\n%s", before)
	}
	b.want(b.tranche("health", "back", "dead_letters"), 0, "told as it was before")
	b.want(b.tranche("health", "back", "dead_letters"), 0, "nothing was said of")
	b.want(b.pipe(people, "run", "start", "--endpoint", "echo", "--items", "-", "--name", "it"), 0, "started")
	b.want(b.tranche("run", "items", "it", "--from", "1", "--limit", "1"), 0, "ORDINAL", "--after 1")
	b.want(b.tranche("run", "items", "it", "--state", "odd"), 2, "--state")
	b.want(b.tranche("run", "items", "it", "--limit", "0"), 2, "--limit")
	b.want(b.tranche("run", "slices", "it"), 0, "scheduled", "sent")
	b.want(b.tranche("run", "slices", "nope"), 1, "tranche run list")
}

// A container's health check asks this, without a token.
func TestHealthReady(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.wantSoon([]string{"health", "ready"}, "ready") // which does not wait for long
	b.wantSoon([]string{"health", "ready", "--json"}, `"ready": true`)
	b.want(runProgram(t, []string{"TRANCHE_URL=http://127.0.0.1:1"}, "", "health", "ready"), 1,
		"ask http://127.0.0.1:1/readyz")
	b.want(runProgram(t, nil, "", "token", "create", "--database", "env", "--name", "me", "--role", "viewer"), 2,
		"TRANCHE_DATABASE is not set")
}
