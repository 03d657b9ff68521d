package gather

import (
	"errors"

	"github.com/tranchehq/tranche/gather/strictyaml"
)

// MaxPlanBytes is how long the YAML of a plan may be.
const MaxPlanBytes = 64 << 10

// Parse reads a plan from YAML, or from JSON, which is YAML too. The name is what errors call the input, and the plan's
// own unless it has a name field.
//
//	name: year-end
//	priority: 10             # runs with a greater number go first
//	max_failed: 1%           # or 500 (items): more failures pause the run
//	guard: 200/400           # or off: so many failures of the first outcomes of a step pause the run
//	canary: 100              # a spread sample goes first
//	canary_auto: true        # and releases the others when it stays within max_failed
//	order_by: customer       # items of the same value go one after the other; without a canary
//	partitions: 64           # values share so many lines; or values: [a, b], the only ones there may be
//	on_failure: stop         # what follows an item that failed is not tried; or continue
//	items:
//	  schema: {type: object, required: [id]}  # a JSON Schema that each item must fit
//	  invalid: fail          # those that do not have failed; or refuse, and there is no run
//	  contract: warn         # when no item has a field that a step's service requires; or refuse, or off
//	steps:
//	  - name: statement      # the endpoint's name when left out
//	    endpoint: statement
//	    chunk: 500           # or auto: found while running
//	    chunk_bytes: 512KiB
//	    chunk_time: 5s       # what a request should take, with chunk: auto
//	    in_flight: auto      # or a number
//	    rate: 1000           # items a second
//	    max_attempts: 3
//	    retry_backoff: 1s
//	    max_backoff: 5m
//	    retry_codes: [BUSY]  # tried again, although the service says no
//	    never_retry: [GONE]  # not tried again, although the service says yes
//	    timeout: 12m         # from the hand-out; longer than the service gives its handler
//
// Everything but the endpoint may be left out. With chunk_auto or in_flight_auto beside it, a number is the upper bound
// of what is found. Unknown fields, wrong kinds of values and values out of range are a
// *strictyaml.Error. Anchors, aliases, tags, merge keys and several documents are not part of plans.
func Parse(name string, text []byte) (*Plan, error) {
	doc, err := strictyaml.Open("plan", name, text, MaxPlanBytes)
	if err != nil {
		return nil, err
	}
	plan := &Plan{Name: name}
	if err := readPlan(doc, plan); err != nil {
		return nil, err
	}
	err = plan.Validate()
	if field, ok := errors.AsType[*FieldError](err); ok {
		return nil, doc.Fail(field.Field, "%s", field.Problem)
	}
	if err != nil {
		return nil, err
	}
	return plan, nil
}
