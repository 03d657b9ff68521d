package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/tranchehq/tranche/gather"
)

// runSettings are the settings of a plan that one run may have otherwise. What is not given stays as the plan has it.
type runSettings struct {
	Priority   *string  `help:"Runs with a greater number go first." placeholder:"N"`
	MaxFailed  *string  `help:"Pause when more items fail: a number, or 1%; none for no limit." placeholder:"N|P%"`
	Canary     *string  `help:"Items of a spread sample that goes first, before the others; 0 for none." placeholder:"N"`
	CanaryAuto *bool    `negatable:"" help:"Go on by itself when no more of the sample failed than --max-failed allows."`
	OrderBy    *string  `help:"Items of the same value of this field of theirs go one after the other, in their order." placeholder:"FIELD"`
	Partitions *string  `help:"With an order: values share so many lines, by their hash; 0: each has its own." placeholder:"N"`
	OnFailure  *string  `help:"With an order: continue, or stop, and what follows a failed item is not tried." placeholder:"WHAT"`
	Chunk      *string  `help:"Items in a request, 1 to 8192, or auto." placeholder:"N|auto"`
	ChunkBytes *string  `help:"Payload bytes in a request, like 512KiB." placeholder:"SIZE"`
	ChunkTime  *string  `help:"What a request should take, with --chunk auto (5s)." placeholder:"TIME"`
	InFlight   *string  `help:"Requests out at once, 1 to 10000, or auto." placeholder:"N|auto"`
	Rate       *string  `help:"Items a second at the most; 0 for no limit." placeholder:"N"`
	Attempts   *string  `help:"How often an item that fails is tried, in all (3)." placeholder:"N"`
	Backoff    *string  `help:"The wait before the second attempt, doubled for each later one (1s)." placeholder:"TIME"`
	MaxBackoff *string  `help:"The longest such wait (5m)." placeholder:"TIME"`
	RetryCode  []string `sep:"none" help:"An error code that is tried again, although the service says no; may stand more than once." placeholder:"CODE"`
	NeverRetry []string `sep:"none" help:"An error code that is not, although the service says yes; may stand more than once." placeholder:"CODE"`

	Set []string `sep:"none" help:"A setting of a single step, by its name in plans: compose.chunk=50; may stand more than once. The others are for every step." placeholder:"STEP.SETTING=VALUE"`

	SliceTimeout *string `help:"For the reply to a request that a service has taken (12m)." placeholder:"TIME"`
}

// flag is a flag with the name that its setting has in plans, and what was given.
type flag struct {
	name, field string
	values      []string
}

func (r *runSettings) flags() []flag {
	one := func(value *string) []string {
		if value == nil {
			return nil
		}
		return []string{*value}
	}
	var canaryAuto []string
	if r.CanaryAuto != nil {
		canaryAuto = []string{fmt.Sprint(*r.CanaryAuto)}
	}
	return []flag{
		{"--priority", "priority", one(r.Priority)},
		{"--max-failed", "max_failed", one(r.MaxFailed)},
		{"--canary", "canary", one(r.Canary)},
		{"--canary-auto", "canary_auto", canaryAuto},
		{"--order-by", "order_by", one(r.OrderBy)},
		{"--partitions", "partitions", one(r.Partitions)},
		{"--on-failure", "on_failure", one(r.OnFailure)},
		{"--chunk", "chunk", one(r.Chunk)},
		{"--chunk-bytes", "chunk_bytes", one(r.ChunkBytes)},
		{"--chunk-time", "chunk_time", one(r.ChunkTime)},
		{"--in-flight", "in_flight", one(r.InFlight)},
		{"--rate", "rate", one(r.Rate)},
		{"--attempts", "max_attempts", one(r.Attempts)},
		{"--backoff", "retry_backoff", one(r.Backoff)},
		{"--max-backoff", "max_backoff", one(r.MaxBackoff)},
		{"--slice-timeout", "timeout", one(r.SliceTimeout)},
		{"--retry-code", "retry_codes", r.RetryCode},
		{"--never-retry", "never_retry", r.NeverRetry},
	}
}

// overrides reads the flags. Errors name the flag.
func (r *runSettings) overrides() (over gather.Overrides, err error) {
	for _, f := range r.flags() {
		for _, value := range f.values {
			if err := over.Set(f.field, value); err != nil {
				return over, r.named(err)
			}
		}
	}
	for _, text := range r.Set {
		if err := over.SetStep(text); err != nil {
			return over, r.named(err)
		}
	}
	return over, r.named(over.Validate())
}

// named calls the setting that an error is about by its flag.
func (r *runSettings) named(err error) error {
	field, ok := errors.AsType[*gather.FieldError](err)
	if !ok {
		return err
	}
	if step, of := strings.CutPrefix(field.Field, "steps."); of {
		return fmt.Errorf("--set %s: %s", step, field.Problem)
	}
	for _, f := range r.flags() {
		if f.field == field.Field {
			return fmt.Errorf("%s: %s", f.name, field.Problem)
		}
	}
	return fmt.Errorf("%s: %s", strings.ReplaceAll(field.Field, "_", "-"), field.Problem)
}
