package runs

import (
	"strings"
	"testing"

	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue"
)

func TestRerunSaysWhoLetsTheOthersGo(t *testing.T) {
	t.Parallel()
	again := &client.Rerun{Run: workqueue.NewRunID().String(), Items: 10, Held: 8, Generation: 2}
	if text := rerunText(again, false); !strings.Contains(text, "When the first have ended: tranche run approve") {
		t.Errorf("with a canary that waits: %s", text)
	}
	text := rerunText(again, true)
	if !strings.Contains(text, "They follow by themselves, unless more of the first fail") {
		t.Errorf("with one that goes on by itself: %s", text)
	}
}

func TestResetText(t *testing.T) {
	t.Parallel()
	done := client.Reset{Step: "transactions", Items: 50, Generation: 2, Steps: []client.StepReset{
		{Step: "transactions", Named: true, Reset: 50, Ready: 48, Withdrawn: 3},
		{Step: "statement", Kept: 40, Waiting: 9, LeftOut: 1},
	}, Notes: []string{"2 items are at step transactions waiting for step accounts"}}
	for name, c := range map[string]struct {
		change func(*client.Reset)
		want   []string
	}{
		"done": {func(*client.Reset) {}, []string{"resets 50 items at step transactions, as generation 2",
			"transactions  50 to be done again, 2 of them once the steps before are done, 3 withdrawn",
			"statement     40 kept unless a part changes, 9 waiting for the parts, 1 left out still",
			"waiting for step accounts", "then statement where a part changes", "tranche run watch"}},
		"dry":     {func(r *client.Reset) { r.DryRun = true }, []string{"dry run:", "would reset", "nothing was changed"}},
		"paused":  {func(r *client.Reset) { r.Paused = "by ann" }, []string{"paused (by ann)", "tranche run resume"}},
		"cascade": {func(r *client.Reset) { r.Cascade = true }, []string{"then statement for all of them"}},
	} {
		one := done
		c.change(&one)
		text := resetText(&one)
		for _, want := range c.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s: the text does not say %q:\n%s", name, want, text)
			}
		}
	}
	both := addResets(&done, &done)
	if both.Items != 100 || both.Steps[0].Reset != 100 || both.Steps[1].Kept != 80 || len(both.Notes) != 2 {
		t.Errorf("twice the same is %+v", both)
	}
}
