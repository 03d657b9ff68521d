package wire

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

const (
	// MaxStack is how many endpoints may wait for one another.
	MaxStack = 16
	// MaxStages bounds the stages of a flow.
	MaxStages = 64
)

// Stack is the endpoints that wait for an answer, outermost first, each with the stage in which it goes on:
// "statement:1,accounts:2". A third part names one of several questions of a stage: "transfer:1:debit". The empty stack
// means that a node or a caller asks.
type Stack string

// Push returns the stack of what the endpoint asks on its way to a stage, being asked with s itself.
func (s Stack) Push(endpoint string, stage int) Stack { return s.PushAs(endpoint, stage, "") }

// PushAs is Push for one of several questions to one endpoint. The name tells them apart: they are different things to
// do.
func (s Stack) PushAs(endpoint string, stage int, name string) Stack {
	frame := Stack(endpoint + ":" + strconv.Itoa(stage))
	if name != "" {
		frame += ":" + Stack(name)
	}
	if s == "" {
		return frame
	}
	return s + "," + frame
}

// Depth returns how many endpoints wait.
func (s Stack) Depth() int {
	if s == "" {
		return 0
	}
	return strings.Count(string(s), ",") + 1
}

// Refusal is what the asker is told of a request that cannot be read.
func Refusal(err error) *SlotError {
	if bad, ok := errors.AsType[*MalformedError](err); ok && bad.Reason == ReasonStack {
		return NewSlotError(CodeStackTooDeep, bad.Detail+"; is there a circle?", false)
	}
	return NewSlotError(CodeBadRequest, err.Error(), false)
}

// ParseStack reads what stands in HeaderStack. One of more than MaxStack endpoints is refused.
func ParseStack(text string) (Stack, error) {
	s := Stack(text)
	if s.Depth() > MaxStack {
		return "", Malformed(ReasonStack, "more than %d endpoints wait for one another: %.300q", MaxStack, text)
	}
	if text == "" {
		return "", nil
	}
	for part := range strings.SplitSeq(text, ",") {
		name, number, _ := strings.Cut(part, ":")
		number, as, named := strings.Cut(number, ":")
		_, ok := smallNumber(number, MaxStages)
		if !ok || ValidateName(name) != nil || named && ValidateName(as) != nil {
			return "", fmt.Errorf("%.100q is not <endpoint>:<stage> or <endpoint>:<stage>:<name>", part)
		}
	}
	return s, nil
}
