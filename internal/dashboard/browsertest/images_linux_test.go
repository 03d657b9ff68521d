package browsertest_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	startstore "github.com/tranchehq/tranche/workqueue/start"
)

var images = flag.String("images", "", "write the images of the documentation into this directory (make images)")

// TestImages takes the pictures of docs/images when it is told where to: always of the same run, times apart.
func TestImages(t *testing.T) {
	t.Parallel()
	if *images == "" {
		return
	}
	b := startBrowser(t)
	s := newStack(t, stackConfig{})
	run := s.yearEnd()
	p := b.open(t, s.url)
	p.do("be of one size", chromedp.EmulateViewport(1440, 1000))
	command(p, emulation.SetScrollbarsHidden, emulation.SetScrollbarsHiddenParams{Hidden: true})
	page := "/runs/" + run.String()
	p.picture("run-dark", "dark", page, "main")
	p.picture("timeline-light", "light", page, at("timeline"))
	p.picture("errors-light", "light", page+"/errors", "main")
	p.picture("item-light", "light", page+"/item?key=40021", "main")
}

// picture writes the window, from a part of the page on.
func (p *page) picture(name, theme, path, part string) {
	p.Helper()
	p.inTheme(theme)
	p.visit(path)
	p.until("it is whole", `document.querySelector('`+part+`') && !document.querySelector(".live-connecting")`)
	p.run(`document.querySelector('` + part + `').scrollIntoView()`)
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	png, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err == nil {
		err = os.WriteFile(filepath.Join(*images, name+".png"), png, 0o600)
	}
	testenv.NoError(p, err)
}

// yearEnd is a run of three steps, of which some items fail, with a pause, a note and a rerun.
func (s *stack) yearEnd() workqueue.RunID {
	s.Helper()
	svc, err := endpoints.New(testenv.Conn(s.T, s.NS), endpoints.Config{Name: "bank", Version: "2.4.0", Log: zap.NewNop()})
	testenv.NoError(s, err)
	for _, name := range []string{"accounts", "movements", "statement"} {
		err := endpoints.HandleList(svc, name, func(_ context.Context, chunk *endpoints.Chunk[bill, json.RawMessage]) error {
			for _, item := range chunk.Items() {
				if code, message := unlucky(name, item.Key); code != "" {
					item.Fail(code, "%s", message)
					continue
				}
				item.Reply(json.RawMessage(fmt.Sprintf(`{"account":%s,"step":%q,"owner":%q,"closing":"1204.50"}`, item.Key,
					name, item.In.Name)))
			}
			return nil
		})
		testenv.NoError(s, err)
	}
	settings := workqueue.StepSettings{Chunk: 500, InFlight: 4, MaxAttempts: 2, Timeout: time.Minute,
		RetryBackoff: time.Millisecond}
	run := s.load(startstore.LoadRequest{Name: "year-end statements", Plan: "statements", Source: "accounts.csv",
		CreatedBy: "ann", Steps: []workqueue.StepSpec{
			{Name: "accounts", Endpoint: "accounts", StepSettings: settings},
			{Name: "movements", Endpoint: "movements", StepSettings: settings},
			{Name: "statement", Endpoint: "statement", StepSettings: settings, Needs: []int{0, 1}, Inputs: []int{0, 1}},
		}}, 100_000, func(i int) (key, payload string) {
		return strconv.Itoa(i), fmt.Sprintf(`{"name":"Person %d"}`, i)
	})
	ctl := control.New(s.Store)
	testenv.Must(ctl.Pause(s.Context(), control.Control{Run: run, Actor: "ann", Reason: "the bank closes its books"}))(s)
	s.keep(svc.Run)
	testenv.NoError(s, ctl.Note(s.Context(), run, "Branch 40 moves tonight: its accounts may fail, and are run again.",
		"bob"))
	testenv.Must(ctl.Resume(s.Context(), control.Control{Run: run, Actor: "ann"}, nil))(s)
	s.ended(run)
	return run
}

// unlucky says which accounts cannot be done: those of one branch, and some here and there.
func unlucky(step, key string) (code, message string) {
	n, err := strconv.Atoi(key)
	switch {
	case err != nil:
		return "no_number", err.Error()
	case step == "accounts" && n >= 40_000 && n < 41_000:
		return "branch_moves", "branch 40 is not reachable while it moves"
	case step == "statement" && n%1_237 == 0:
		return "no_address", fmt.Sprintf("customer %d has no address", n)
	}
	return "", ""
}
