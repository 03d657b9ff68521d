package gather

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/workqueue"
)

const (
	maxCodes   = 100
	minTimeout = time.Millisecond // of a request or a query of its own
)

// validate checks the step, whose fields begin with prefix.
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

// validateKind checks that exactly one field says how the work is done, and what it says.
func (s *Step) validateKind(prefix string) error {
	var kinds []Kind
	for _, k := range []struct {
		kind Kind
		set  bool
	}{
		{KindEndpoint, s.Endpoint != ""}, {KindRequest, s.Request != ""}, {KindHTTP, s.HTTP != nil},
		{KindSQL, s.SQL != nil}, {KindLocal, s.Local != ""},
	} {
		if k.set {
			kinds = append(kinds, k.kind)
		}
	}
	switch {
	case len(kinds) == 0:
		return fieldError(prefix+"endpoint", "a step needs an endpoint, or one of request, http, sql and local")
	case len(kinds) > 1:
		return fieldError(prefix+string(kinds[1]), "%s stands beside it; a step has one of endpoint, request, http, sql "+
			"and local: make two steps of it", kinds[0])
	}
	return s.validateTarget(prefix)
}

// validateTarget checks who does the work. What an HTTP or SQL step says is checked last: it is about inputs, too.
func (s *Step) validateTarget(prefix string) error {
	switch s.Kind() {
	case KindLocal:
		return checkName(prefix+"local", s.Local, "")
	case KindHTTP:
		return s.HTTP.validate(s, prefix+"http.")
	case KindSQL:
		return s.SQL.validate(s, prefix+"sql.")
	case KindRequest:
		if err := wire.ValidateName(s.Request); err != nil {
			return fieldError(prefix+"request", "%v", err)
		}
	case KindEndpoint:
		if err := wire.ValidateName(s.Endpoint); err != nil {
			return fieldError(prefix+"endpoint", "%v", err)
		}
	}
	return nil
}

// checkInputs checks that what the step sees is there, each once, and that a barrier has something to wait for.
func (s *Step) checkInputs(prefix string) error {
	for n, input := range s.Inputs {
		field := fmt.Sprintf("%sinputs[%d]", prefix, n)
		if input != InputItem && !slices.Contains(s.Needs, input) {
			return fieldError(field, "%q is neither item nor one of the step's needs (%s); add it to needs, or leave it out",
				input, cmp.Or(strings.Join(s.Needs, ", "), "it has none"))
		}
		if slices.Contains(s.Inputs[:n], input) {
			return fieldError(field, "%q stands twice", input)
		}
	}
	if s.Barrier && len(s.Needs) == 0 {
		return fieldError(prefix+"barrier", "there is nothing that it could wait for; name steps in needs, or leave it out")
	}
	return s.checkApproval(prefix + "approve_by")
}

func (s *Step) checkApproval(field string) error {
	switch {
	case s.Approval == "":
		return nil
	case !s.Barrier:
		return fieldError(field, "it goes with barrier: approve only")
	case s.Approval != ApproveAnyone && s.Approval != ApproveOther:
		return fieldError(field, "%.40q; it is %s, or %s: not by whoever started the run", s.Approval, ApproveAnyone,
			ApproveOther)
	}
	return nil
}

// validateValues looks at each setting by itself.
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
	return checkCodes(prefix+"never_retry", s.NeverRetry)
}

// validateTogether looks at settings that have to fit each other.
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
	for _, code := range s.NeverRetry {
		if slices.Contains(s.RetryCodes, code) {
			return fieldError(prefix+"never_retry", "%q stands in retry_codes as well; leave it in one of them", code)
		}
	}
	return nil
}

// checkCodes allows what endpoints allow as error codes, which is what is allowed in names, each once.
func checkCodes(field string, codes []string) error {
	if len(codes) > maxCodes {
		return fieldError(field, "%d codes; at most %d are allowed", len(codes), maxCodes)
	}
	for i, code := range codes {
		if code == workqueue.NoCodes {
			return fieldError(field, "%s is no code, and stands for an empty list only; leave it out beside others", code)
		}
		if err := checkName(field, code, "."); err != nil {
			return err
		}
		if slices.Contains(codes[:i], code) {
			return fieldError(field, "%q stands twice", code)
		}
	}
	return nil
}
