package access

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/identity"
)

// Anonymous is what the audit log calls those who do not say who they are.
const Anonymous = identity.Anonymous

// MaxName is how many characters a name has at the most.
const MaxName = 100

// CheckName refuses names that would mislead whoever reads the audit log.
func CheckName(name string) error {
	strange := strings.IndexFunc(name, func(r rune) bool { return !unicode.IsGraphic(r) || r == unicode.ReplacementChar })
	switch {
	case name == "" || strings.TrimSpace(name) != name:
		return errors.New("there must be a name, without spaces around it, by which the audit log tells who acted")
	case len([]rune(name)) > MaxName:
		return fmt.Errorf("it has more than %d characters; shorten it", MaxName)
	case strange >= 0:
		return errors.New(strconv.Quote(name) + " has a character that nobody sees; leave it out")
	case strings.EqualFold(name, workqueue.Engine) || strings.EqualFold(name, Anonymous):
		return errors.New(name + " is what the audit log calls what nobody did, or nobody known; choose another")
	default:
		return nil
	}
}
