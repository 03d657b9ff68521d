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
