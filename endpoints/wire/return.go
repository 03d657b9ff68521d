package wire

import (
	"fmt"
	"strconv"
	"strings"
)

// Return is where a reply goes when its asker is not a node: back into a flow, or to a caller who waits. The zero
// Return is none.
type Return struct {
	// Asker is the endpoint of the flow, or the name of the caller.
	Asker string
	// Callee is the endpoint that was asked. A reply under the name of another one is refused.
	Callee string
	// Call is the caller's token; empty when the asker is a flow.
	Call string
	// Stage is where the flow goes on, Request which of its requests this answers.
	Stage, Request int
}

// MaxRequests bounds the requests of one stage for one chunk.
const MaxRequests = 8192

// IsZero reports whether r is none.
func (r Return) IsZero() bool { return r == Return{} }

// String returns the subject, or "" for the zero Return.
func (r Return) String() string {
	switch {
	case r.IsZero():
		return ""
	case r.Call != "":
		return CallPrefix + r.Asker + "." + r.Call + "." + r.Callee
	default:
		return StagePrefix + r.Asker + "." + strconv.Itoa(r.Stage) + "." + strconv.Itoa(r.Request) + "." + r.Callee
	}
}

// ParseReturn reads what String wrote. Nothing else is taken: a request must not make a service publish anywhere.
func ParseReturn(subject string) (Return, error) {
	if subject == "" {
		return Return{}, nil
	}
	r, ok := parseReturn(subject)
	if !ok {
		return Return{}, fmt.Errorf("%.100q is neither %s<flow>.<stage>.<request>.<endpoint> nor "+
			"%s<caller>.<token>.<endpoint>", subject, StagePrefix, CallPrefix)
	}
	return r, nil
}

func parseReturn(subject string) (r Return, ok bool) {
	if rest, found := strings.CutPrefix(subject, CallPrefix); found {
		tokens := strings.Split(rest, ".")
		if len(tokens) != 3 {
			return r, false
		}
		r = Return{Asker: tokens[0], Call: tokens[1], Callee: tokens[2]}
		return r, ValidateName(r.Asker) == nil && ValidateName(r.Call) == nil && ValidateName(r.Callee) == nil
	}
	rest, found := strings.CutPrefix(subject, StagePrefix)
	tokens := strings.Split(rest, ".")
	if !found || len(tokens) != 4 {
		return r, false
	}
	r = Return{Asker: tokens[0], Callee: tokens[3]}
	stage, isStage := smallNumber(tokens[1], MaxStages)
	request, isRequest := smallNumber(tokens[2], MaxRequests)
	r.Stage, r.Request = stage, request
	return r, isStage && isRequest && stage > 0 && ValidateName(r.Asker) == nil && ValidateName(r.Callee) == nil
}

// smallNumber reads a number below limit that is written the one way that String writes it.
func smallNumber(text string, limit int) (int, bool) {
	n, err := strconv.Atoi(text)
	return n, err == nil && n >= 0 && n < limit && strconv.Itoa(n) == text
}
