package runs

import "strings"

// linksText names the run that a run carries on, and those that carry it on.
func linksText(from *string, carriedOn []string) (lines [][2]string) {
	if from != nil {
		lines = append(lines, [2]string{"carries on", "run " + *from})
	}
	if len(carriedOn) > 0 {
		lines = append(lines, [2]string{"carried on by", "run " + strings.Join(carriedOn, ", ")})
	}
	return lines
}
