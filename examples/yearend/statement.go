package yearend

import (
	"fmt"

	"github.com/tranchehq/tranche/examples/bank"
)

// Statement is an account's year, in cents: Opening + In - Out = Closing.
type Statement struct {
	Account   int32  `json:"account"`
	Number    string `json:"number"`
	Owner     string `json:"owner"`
	Branch    string `json:"branch"`
	Year      int    `json:"year"`
	Movements int64  `json:"movements"`
	Opening   int64  `json:"opening"`
	In        int64  `json:"in"`
	Out       int64  `json:"out"`
	Closing   int64  `json:"closing"`
}

// Parts is what a statement is made of: an answer of each service.
type Parts struct {
	Account bank.Account
	Year    bank.Year
	Branch  bank.Branch
}

// UnbalancedError is returned when an account and its movements do not fit together.
type UnbalancedError struct {
	Opening, Sum, Closing int64
}

func (e *UnbalancedError) Error() string {
	return fmt.Sprintf("%s at the beginning and %s of movements do not make %s",
		amount(e.Opening), amount(e.Sum), amount(e.Closing))
}

// Statement adds the year up. An account that does not balance gets an [UnbalancedError].
func (p *Parts) Statement() (Statement, error) {
	s := Statement{
		Account: p.Account.Account, Number: p.Account.Number, Owner: p.Account.Owner, Branch: p.Branch.Name,
		Year: p.Year.Year, Opening: p.Account.Opening, Closing: p.Account.Closing,
	}
	for _, month := range p.Year.Months {
		s.Movements += month.Movements
		s.In += month.In
		s.Out += month.Out
	}
	if s.Opening+s.In-s.Out != s.Closing {
		return s, &UnbalancedError{Opening: s.Opening, Sum: s.In - s.Out, Closing: s.Closing}
	}
	return s, nil
}

// balances are what was on the account at the end of each month.
func (p *Parts) balances() [12]int64 {
	var all [12]int64
	balance := p.Account.Opening
	for i, month := range p.Year.Months {
		balance += month.In - month.Out
		all[i] = balance
	}
	return all
}
