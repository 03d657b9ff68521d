package service

import (
	"fmt"
	"time"
	"unicode"
	"unicode/utf8"
)

// Limits of what is taken.
const (
	MaxAdd       = 1_000_000_000  // items of one Add
	MaxItems     = 10_000_000_000 // items of a batch
	MaxAckGroups = 20_000         // groups that the masks of one Ack name: 20 MB; whole groups are not limited
	MaxText      = 200            // characters of an owner, a key, the name of a secret
	MaxCode      = 64             // characters of a code
	MaxURL       = 2000           // characters of a webhook's URL
	MaxPage      = 10_000         // rows of a page
)

// Ages that hold unless others are asked for.
const (
	DefaultOpenIdle   = 24 * time.Hour     // an open batch that nobody touched expires
	DefaultSealedIdle = 7 * 24 * time.Hour // so does a sealed one
	DefaultKeep       = 7 * 24 * time.Hour // how long a completed or expired one can be asked for
)

// Bounds of the three ages.
const (
	MinAge = time.Second
	MaxAge = 366 * 24 * time.Hour
)

// text checks a name that people chose.
func text(field, value string, limit int, required bool) error {
	switch n := utf8.RuneCountInString(value); {
	case value == "" && required:
		return &RequestError{Field: field, Problem: "is missing"}
	case !utf8.ValidString(value):
		return &RequestError{Field: field, Problem: "is not valid UTF-8"}
	case n > limit:
		return &RequestError{Field: field, Problem: fmt.Sprintf("has %d characters; at most %d are taken", n, limit)}
	}
	for i, r := range value {
		if !unicode.IsPrint(r) {
			return &RequestError{Field: field, Problem: fmt.Sprintf("has the unprintable character %U at byte %d", r, i)}
		}
	}
	return nil
}

// age applies the default and checks the bounds. PostgreSQL keeps microseconds.
func age(field string, d *time.Duration, def time.Duration) error {
	if *d == 0 {
		*d = def
	}
	*d = d.Truncate(time.Microsecond)
	if *d < MinAge || *d > MaxAge {
		return &RequestError{Field: field, Problem: fmt.Sprintf("is %v; it must be from %v to %v", *d, MinAge, MaxAge)}
	}
	return nil
}

// page is a limit as the statements take it.
func page(limit int) int { return min(max(limit, 1), MaxPage) }
