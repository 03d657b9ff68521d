package wire

// Nearest returns the endpoint that somebody listens on and whose name differs from another by a slip or two; or nothing.
func Nearest(name string, heard []Listener) (nearest string) {
	least := min(2, len(name)/4) + 1 //nolint:mnd // a slip for four characters, two at the most
	for i := range heard {
		if d := slips(name, heard[i].Endpoint); d < least {
			nearest, least = heard[i].Endpoint, d
		}
	}
	return nearest
}

// slips counts the characters to be put in, taken out or changed to make one text of the other (Levenshtein).
func slips(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
