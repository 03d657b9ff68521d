package endpoints

import (
	"fmt"
	"strconv"
	"strings"
)

const (
	// MaxStack is how many endpoints may wait for one another.
	MaxStack = 16
	// maxStages bounds the stages of a flow.
	maxStages = 64
)

// Stack is the endpoints that wait for an answer, outermost first, each with the stage in which it goes on:
// "statement:1,accounts:2". The empty stack means that a node or a caller asks.
type Stack string

// Push returns the stack of what the endpoint asks on its way to a stage, being asked with s itself.
func (s Stack) Push(endpoint string, stage int) Stack {
	frame := Stack(endpoint + ":" + strconv.Itoa(stage))
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

// ParseStack reads what stands in HeaderStack. One of more than MaxStack endpoints is refused.
func ParseStack(text string) (Stack, error) {
	s := Stack(text)
	if s.Depth() > MaxStack {
		return "", fmt.Errorf("more than %d endpoints wait for one another: %.300q", MaxStack, text)
	}
	if text == "" {
		return "", nil
	}
	for part := range strings.SplitSeq(text, ",") {
		name, number, _ := strings.Cut(part, ":")
		if _, ok := smallNumber(number, maxStages); !ok || ValidateName(name) != nil {
			return "", fmt.Errorf("%.100q is not <endpoint>:<stage>", part)
		}
	}
	return s, nil
}
