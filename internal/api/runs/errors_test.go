package runs_test

import (
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/workqueue"
)

// What is told of errors is true at once, although it is kept.
func TestErrorsAreCountedAnew(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	run := b.Start("name=e").Run
	b.Answer(run, "", func(o workqueue.Ordinal) []byte {
		if o == 1 {
			return []byte("1")
		}
		return nil
	})
	errorsAre := func(want ...string) {
		t.Helper()
		_, text := b.Get("/runs/e/errors")
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("%s lacks %s", text, w)
			}
		}
	}
	for range 2 {
		errorsAre(`"items":2,`, `"by_step":[{"step":"echo","count":2}]`, `"by_service":[{"service":"test","count":2}]`)
	}
	b.Sent(200, false, "", "again", "/runs/e/rerun", `{"ranges":[[0,0]]}`)
	errorsAre(`"items":1,`, `"by_step":[{"step":"echo","count":1}]`)
	b.Answer(run, "", func(workqueue.Ordinal) []byte { return []byte("2") })
	errorsAre(`"items":1,`)
	b.Sent(200, false, "", "more", "/runs/e/rerun", `{"ranges":[[0,2]]}`)
	errorsAre(`"items":0,`, `"groups":[]`, `"by_step":[]`)
	b.Answer(run, "", func(workqueue.Ordinal) []byte { return nil })
	errorsAre(`"items":3,`, `"by_service":[{"service":"test","count":3}]`)
}
