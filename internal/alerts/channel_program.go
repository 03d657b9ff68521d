package alerts

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/tranchehq/tranche/gather/fetch/httpfetch"
)

type program string

func (p *program) check() (field string, err error) { return "", nil }

func (p *program) reachable(r *Receivers) (field string, err error) {
	_, err = p.path(r)
	return "", err
}

const (
	// maxOutput limits what is kept of a program's output.
	maxOutput = 4 << 10
	// afterKill is how long to wait for the output of a program that has ended or was killed.
	afterKill = time.Second
)

func (p *program) path(r *Receivers) (string, error) {
	if path, ok := r.programs[string(*p)]; ok {
		return path, nil
	}
	known := "it allows none"
	if len(r.programs) > 0 {
		known = "it allows " + strings.Join(slices.Sorted(maps.Keys(r.programs)), ", ")
	}
	return "", fmt.Errorf("this node runs no program %.64q; %s (serve --alert-program NAME=PATH)", *p, known)
}

// tell runs the program with the message as JSON on standard input. There is no shell and there are no arguments. Of
// this process's environment, which may hold secrets, it gets PATH only. At the timeout it is killed with its
// descendants.
func (p *program) tell(ctx context.Context, r *Receivers, m *Message) httpfetch.Delivery {
	path, err := p.path(r)
	if err != nil {
		return r.unreachable(err)
	}
	input, err := json.Marshal(m)
	if err != nil {
		return r.unwritable(err)
	}
	said := &bounded{}
	cmd := exec.CommandContext(ctx, path)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), said, said
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "TRANCHE_ALERT=" + m.Alert, "TRANCHE_ALERT_ID=" + m.ID,
		"TRANCHE_ALERT_STATUS=" + m.Status, "TRANCHE_ALERT_SEVERITY=" + string(m.Severity),
		"TRANCHE_ALERT_TITLE=" + strings.ReplaceAll(m.Title, "\x00", ""), "TRANCHE_ALERT_LINK=" + m.Link,
	}
	cmd.Dir = "/"
	withDescendants(cmd)
	cmd.WaitDelay = afterKill
	err = cmd.Run()
	switch ended := cmd.ProcessState; {
	case ended != nil && ended.Success():
		if err != nil { // a descendant holds its output
			_ = cmd.Cancel() // which may have ended since
		}
		return httpfetch.Delivery{Delivered: true}
	case ctx.Err() != nil:
		return httpfetch.Delivery{Why: "program " + string(*p) + ": it did not end before its timeout",
			Said: r.sender.Quoted(said.kept)}
	}
	return httpfetch.Delivery{Why: "program " + string(*p) + ": " + ending(err), Said: r.sender.Quoted(said.kept)}
}

// ending describes how a program ended, without its path.
func ending(err error) string {
	if ended, ok := errors.AsType[*exec.ExitError](err); ok {
		return ended.String()
	}
	return "it cannot be run"
}

type bounded struct{ kept []byte }

func (b *bounded) Write(p []byte) (int, error) {
	b.kept = append(b.kept, p[:min(len(p), maxOutput-len(b.kept))]...)
	return len(p), nil
}
