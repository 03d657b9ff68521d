package cli

import "fmt"

// Within refuses a number that is given and not from 1 to most.
func Within(flag string, n *int, most int) error {
	if n != nil && (*n < 1 || *n > most) {
		return fmt.Errorf("%s is %d; it must lie between 1 and %d", flag, *n, most)
	}
	return nil
}
