package gather

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/gather/strictyaml"
	"github.com/tranchehq/tranche/workqueue"
)

// Limits of a plan.
const (
	MaxCanary = 1_000_000

	maxSteps      = 64
	maxNameLength = 64
)

// Validate returns a *FieldError for the first invalid setting. It sets no defaults. Endpoints are checked before
// names, because a missing name is taken from the endpoint.
func (p *Plan) Validate() error {
	switch {
	case len(p.Steps) == 0:
		return fieldError("steps", "a plan needs a step")
	case len(p.Steps) > maxSteps:
		return fieldError("steps", "%d steps; at most %d are allowed", len(p.Steps), maxSteps)
	}
	for i := range p.Steps {
		if err := p.Steps[i].validate(stepField(i) + "."); err != nil {
			return err
		}
	}
	if err := checkName("name", p.Name, "."); err != nil {
		return err
	}
	if err := p.validateValues(); err != nil {
		return err
	}
	if p.CanaryAutoApprove && p.Canary == 0 {
		return fieldError("canary_auto_approve", "there is no canary that it could be about; set canary, like canary: 100")
	}
	if err := p.checkOrder(); err != nil {
		return err
	}
	if err := p.checkItems(); err != nil {
		return err
	}
	return p.checkSteps()
}

func (p *Plan) checkSteps() error {
	if err := checkGraph(p.Steps); err != nil {
		return err
	}
	optional := 0
	for i := range p.Steps {
		s := &p.Steps[i]
		if len(p.Steps) > 1 && s.Name == InputItem {
			return fieldError(stepField(i)+".name", "%q is what inputs call the item itself; choose another name", s.Name)
		}
		if err := s.checkInputs(stepField(i) + "."); err != nil {
			return err
		}
		if s.Optional {
			optional++
		}
	}
	if optional == len(p.Steps) {
		return fieldError(stepField(len(p.Steps)-1)+".optional",
			"every step is optional, so that no item could ever fail; leave it out of one that counts")
	}
	return nil
}

func (p *Plan) validateValues() error {
	if p.Priority < math.MinInt32 || p.Priority > math.MaxInt32 {
		return fieldError("priority", "%d is not within %d to %d", p.Priority, math.MinInt32, math.MaxInt32)
	}
	switch canonical, err := workqueue.ParseDoneBy(p.DoneBy); {
	case err != nil || canonical != p.DoneBy:
		return fieldError("done_by", "%.60q: %v", p.DoneBy, workqueue.ErrDoneBy)
	case p.Gentle && p.DoneBy == "":
		return fieldError("gentle", "it goes with done_by: only as many requests are in flight as done_by needs")
	}
	if canonical, err := workqueue.ParseMaxFailed(p.MaxFailed); err != nil || canonical != p.MaxFailed {
		return fieldError("max_failed", "%.40q: %v", p.MaxFailed, workqueue.ErrMaxFailed)
	}
	if rule, err := workqueue.ParseFailFast(p.FailFast); err != nil || p.FailFast != "" && rule.String() != p.FailFast {
		return fieldError("fail_fast", "%.40q: %v", p.FailFast, workqueue.ErrFailFast)
	}
	if p.Canary < 0 || p.Canary > MaxCanary {
		return fieldError("canary", "%d is not within 0 to %d", p.Canary, MaxCanary)
	}
	return nil
}

func stepField(i int) string { return fmt.Sprintf("steps[%d]", i) }

// CheckName returns a *FieldError unless name is valid for a plan.
func CheckName(name string) error { return checkName("name", name, ".") }

// checkName allows letters, digits, _, - and the characters of also.
func checkName(field, name, also string) error {
	if name == "" {
		return fieldError(field, "a name is needed")
	}
	if len(name) > maxNameLength {
		return fieldError(field, "%.20q… has %d characters; %d are allowed", name, len(name), maxNameLength)
	}
	for _, c := range name {
		word := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
		if !word && (also == "" || string(c) != also) {
			return fieldError(field, "%q: use %s", name, strings.TrimSpace("A-Z a-z 0-9 _ - "+also))
		}
	}
	return nil
}

// MaxPlanBytes bounds the YAML of a plan.
const MaxPlanBytes = 64 << 10

// Parse parses a plan from YAML or JSON. Errors use name for the input; it is also the plan's name unless the plan
// has one.
//
//	name: year-end
//	priority: 10             # runs with a greater number go first
//	done_by: "06:00 Europe/Berlin"  # runs go at the pace that needs
//	gentle: true             # and with no more in flight
//	max_failed: 1%           # or 500 (items): more failures pause the run
//	fail_fast: 200/400       # or off: failures among a step's first outcomes that pause the run
//	canary: 100              # a spread sample runs first
//	canary_auto_approve: true        # approve the rest if the sample stays within max_failed
//	order_by: customer       # items of equal value run one at a time; not with canary
//	partitions: 64           # hash values into N lanes; or values: [a, b], the only ones allowed
//	on_failure: stop         # do not try items after a failed one; or continue
//	items:
//	  schema: {type: object, required: [id]}  # a JSON Schema for the items
//	  on_invalid: fail       # invalid items fail; or reject: no run
//	  contract: warn         # if no item has a field that a step's service requires; or reject, or off
//	steps:
//	  - name: statement      # default: the endpoint's name
//	    endpoint: statement
//	    chunk: 500           # or auto: adapted while running
//	    chunk_bytes: 512KiB
//	    chunk_time: 5s       # target time of a request, with chunk: auto
//	    in_flight: auto      # or a number
//	    rate: 1000           # items per second
//	    max_attempts: 3
//	    retry_backoff: 1s
//	    max_backoff: 5m
//	    retry_codes: [BUSY]  # retried even if the service says no
//	    no_retry_codes: [GONE]  # not retried even if the service says yes
//	    timeout: 12m         # from delivery; longer than the handler's timeout
//
// Only the endpoint is required. With chunk_auto or in_flight_auto, a number is an upper bound. Unknown fields, wrong
// types and invalid values are a *strictyaml.Error. Anchors, aliases, tags, merge keys and multiple documents are not
// allowed.
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

const (
	maxCodes   = 100
	minTimeout = time.Millisecond // of a request or query
)

func (s *Step) validate(prefix string) error {
	if err := s.validateKind(prefix); err != nil {
		return err
	}
	if err := checkName(prefix+"name", s.Name, ""); err != nil {
		return err
	}
	if err := s.validateValues(prefix); err != nil {
		return err
	}
	return s.validateTogether(prefix)
}

func (s *Step) validateKind(prefix string) error {
	var kinds []Kind
	for _, w := range s.workers() {
		if w.given {
			kinds = append(kinds, w.kind)
		}
	}
	switch {
	case len(kinds) == 0:
		return fieldError(prefix+"endpoint", "a step needs an endpoint, or one of direct, http, sql and local")
	case len(kinds) > 1:
		return fieldError(prefix+string(kinds[1]), "%s is set, too; a step has one of endpoint, direct, http, sql "+
			"and local: make two steps of it", kinds[0])
	}
	return s.validateTarget(prefix)
}

// validateTarget checks the worker's name. HTTP and SQL settings are checked last, because they depend on inputs.
func (s *Step) validateTarget(prefix string) error {
	switch s.Kind() {
	case KindLocal:
		return checkName(prefix+"local", s.Local, "")
	case KindHTTP:
		return s.HTTP.validate(s, prefix+"http.")
	case KindSQL:
		return s.SQL.validate(s, prefix+"sql.")
	case KindDirect:
		if err := wire.ValidateName(s.Direct); err != nil {
			return fieldError(prefix+"direct", "%v", err)
		}
	case KindEndpoint:
		if err := wire.ValidateName(s.Endpoint); err != nil {
			return fieldError(prefix+"endpoint", "%v", err)
		}
	}
	return nil
}

func (s *Step) checkInputs(prefix string) error {
	for n, input := range s.Inputs {
		field := fmt.Sprintf("%sinputs[%d]", prefix, n)
		if input != InputItem && !slices.Contains(s.Needs, input) {
			return fieldError(field, "%q is neither item nor one of the step's needs (%s); add it to needs, or leave it out",
				input, cmp.Or(strings.Join(s.Needs, ", "), "it has none"))
		}
		if slices.Contains(s.Inputs[:n], input) {
			return fieldError(field, "%q appears twice", input)
		}
	}
	if s.Barrier && len(s.Needs) == 0 {
		return fieldError(prefix+"barrier", "there is nothing that it could wait for; name steps in needs, or leave it out")
	}
	return s.checkApproval(prefix + "approvers")
}

func (s *Step) checkApproval(field string) error {
	switch {
	case s.Approval == "":
		return nil
	case !s.Barrier:
		return fieldError(field, "it goes with barrier: approve only")
	case s.Approval != ApproveAnyone && s.Approval != ApproveOther:
		return fieldError(field, "invalid %.40q; want %s, or %s: one without a part in the run", s.Approval, ApproveAnyone,
			ApproveOther)
	}
	return nil
}

func (s *Step) validateValues(prefix string) error {
	if name, problem := s.Check(); name != "" {
		return fieldError(prefix+name, "%s", problem)
	}
	return checkAllCodes(prefix, s.StepSettings)
}

func checkAllCodes(prefix string, s workqueue.StepSettings) error {
	if err := checkCodes(prefix+"retry_codes", s.RetryCodes); err != nil {
		return err
	}
	return checkCodes(prefix+"no_retry_codes", s.NoRetryCodes)
}

func (s *Step) validateTogether(prefix string) error {
	switch {
	case s.ChunkAuto && s.ChunkTime == 0:
		return fieldError(prefix+"chunk_time", "a chunk of auto needs a time to aim at, like %v", workqueue.DefaultChunkTime)
	case !s.ChunkAuto && s.ChunkTime != 0:
		return fieldError(prefix+"chunk_time", "it goes with chunk: auto only, and the chunk is %d; leave one out", s.Chunk)
	case s.ChunkTime > s.Timeout:
		return fieldError(prefix+"chunk_time", "%v is longer than the timeout of a request, %v", s.ChunkTime, s.Timeout)
	case s.MaxBackoff < s.RetryBackoff:
		return fieldError(prefix+"max_backoff", "%v is shorter than the first wait, retry_backoff: %v", s.MaxBackoff,
			s.RetryBackoff)
	}
	for _, code := range s.NoRetryCodes {
		if slices.Contains(s.RetryCodes, code) {
			return fieldError(prefix+"no_retry_codes", "%q is in retry_codes, too; leave it in one of them", code)
		}
	}
	return nil
}

func checkCodes(field string, codes []string) error {
	if len(codes) > maxCodes {
		return fieldError(field, "%d codes; at most %d are allowed", len(codes), maxCodes)
	}
	for i, code := range codes {
		if code == workqueue.NoCodes {
			return fieldError(field, "%s is not a code, it means an empty list; leave it out when codes are listed", code)
		}
		if err := checkName(field, code, "."); err != nil {
			return err
		}
		if slices.Contains(codes[:i], code) {
			return fieldError(field, "%q appears twice", code)
		}
	}
	return nil
}
