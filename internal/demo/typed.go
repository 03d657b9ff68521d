package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
)

// stopGrace is how long a command may take to stop, before it is killed.
const stopGrace = 5 * time.Second

// Exit codes of tranche that the demo expects.
const (
	exitOK      = 0
	exitRefused = 1 // the input is refused
	exitFailed  = 3 // the run has failed items
	exitHeld    = 4 // the run waits for somebody
)

// shell runs commands of tranche in the demo's directory, as the person would type them.
type shell struct {
	program  string
	dir      string
	env      []string
	out, err io.Writer
	story    *story
}

func (sh *shell) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, sh.program, args...)
	cmd.Dir, cmd.Env = sh.dir, sh.env
	gently(cmd)
	return cmd
}

// gently has the end of the context ask the program to stop, rather than kill it.
func gently(cmd *exec.Cmd) {
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopGrace
}

// typed shows a command and runs it, with the person's terminal as its own. It must end with the exit code.
func (sh *shell) typed(ctx context.Context, exit int, args ...string) error {
	sh.story.command("tranche " + quoted(args))
	cmd := sh.command(ctx, args...)
	cmd.Stdout, cmd.Stderr = sh.out, sh.err
	return expect(ctx, exit, "tranche "+strings.Join(args[:min(2, len(args))], " "), cmd.Run())
}

// quoted is how arguments are typed.
func quoted(args []string) string {
	typed := slices.Clone(args)
	for i, arg := range typed {
		if strings.ContainsAny(arg, " {") {
			typed[i] = "'" + arg + "'"
		}
	}
	return strings.Join(typed, " ")
}

// expect makes an error of what exec returned, unless it is the exit code.
func expect(ctx context.Context, exit int, name string, err error) error {
	var code *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &code) && code.ExitCode() == exit, err == nil && exit == 0:
		return nil
	case err == nil || code != nil:
		return commandError(name, exit, err, "")
	default:
		return fmt.Errorf("run %s: %w", name, err)
	}
}

// piped runs from with its output as the input of the typed command.
func (sh *shell) piped(ctx context.Context, from *exec.Cmd, exit int, args ...string) error {
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("pipe: %w", err)
	}
	var said strings.Builder
	from.Stdout, from.Stderr = w, &said
	gently(from)
	to := sh.command(ctx, args...)
	to.Stdin, to.Stdout, to.Stderr = r, sh.out, sh.err
	err = to.Start()
	if err == nil {
		err = from.Start()
	}
	// The children have their ends; ours must go, or neither would see the other's end.
	err = errors.Join(err, r.Close(), w.Close())
	if to.Process == nil {
		return err
	}
	if from.Process != nil {
		if fromErr := from.Wait(); fromErr != nil {
			err = errors.Join(err, commandError("psql", exitOK, fromErr, said.String()))
		}
	}
	return errors.Join(err, expect(ctx, exit, "tranche run start", to.Wait()))
}

// ask runs a command unseen and decodes the JSON that it prints.
func (sh *shell) ask(ctx context.Context, into any, args ...string) error {
	cmd := sh.command(ctx, append([]string{"--json"}, args...)...)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	name := "tranche " + strings.Join(args, " ")
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return commandError(name, exitOK, err, said.String())
	}
	if err := json.Unmarshal(out, into); err != nil {
		return fmt.Errorf("understand what %s prints: %w", name, err)
	}
	return nil
}
