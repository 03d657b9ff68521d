package endpointstest_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
)

// exampleTB is what an example has for a test, which examples are not given.
type exampleTB struct {
	testing.TB
	ctx    context.Context
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
	for _, undo := range slices.Backward(t.undo) {
		undo()
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

func (t *exampleTB) Errorf(format string, args ...any) {
	_, _ = fmt.Fprintf(os.Stdout, format+"\n", args...)
}

func (t *exampleTB) Fatal(args ...any) { panic(fmt.Sprint(args...)) }

func (t *exampleTB) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
