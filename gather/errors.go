package gather

import "fmt"

// FieldError is returned for a plan that breaks a rule.
type FieldError struct {
	Field   string // like steps[0].chunk
	Problem string // what is wrong, and what is allowed
}

func (e *FieldError) Error() string { return fmt.Sprintf("plan: %s: %s", e.Field, e.Problem) }

func fieldError(field, format string, args ...any) *FieldError {
	return &FieldError{Field: field, Problem: fmt.Sprintf(format, args...)}
}
