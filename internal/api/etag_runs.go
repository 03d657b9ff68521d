package api

import "time"

// runTag is weak: what only the clock changes is no change.
func runTag(run *RunDocument) (string, error) {
	still := *run
	still.At, still.Seconds = time.Time{}, 0
	sum, err := printOf(&still)
	return `W/"` + sum + `"`, err
}

func itemsTag(items *KeyItems) (string, error) {
	sum, err := printOf(items)
	return `"` + sum + `"`, err
}
