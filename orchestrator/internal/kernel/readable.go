package kernel

import "strings"

// maxDutyError bounds what a heartbeat carries of an error, in bytes.
const maxDutyError = 500

// Readable is the text of an error as a heartbeat can carry it.
func Readable(err error) string {
	text := strings.ReplaceAll(err.Error(), "\x00", "") // PostgreSQL takes none
	return strings.ToValidUTF8(text[:min(len(text), maxDutyError)], "")
}
