package endpointstest_test

import (
	"context"
	"fmt"
	"os"
	"testing"
)

// exampleTB is what an example has for a test, which examples are not given.
type exampleTB struct {
	testing.TB
	ctx    context.Context //nolint:containedctx // as a test's
	cancel context.CancelFunc
	undo   []func()
}

func begin() *exampleTB {
	t := &exampleTB{}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	return t
}

func (t *exampleTB) end() {
	t.cancel()
	for n := len(t.undo) - 1; n >= 0; n-- {
		t.undo[n]()
	}
}

func (t *exampleTB) Helper() {}

func (t *exampleTB) Name() string { return "Example" }

func (t *exampleTB) Context() context.Context { return t.ctx }

func (t *exampleTB) Cleanup(f func()) { t.undo = append(t.undo, f) }

func (t *exampleTB) TempDir() string {
	dir, err := os.MkdirTemp("", "endpointstest-")
	if err != nil {
		panic(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (t *exampleTB) Errorf(format string, args ...any) { fmt.Printf(format+"\n", args...) }

func (t *exampleTB) Fatal(args ...any) { panic(fmt.Sprint(args...)) }

func (t *exampleTB) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
