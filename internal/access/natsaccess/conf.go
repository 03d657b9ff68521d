package natsaccess

import (
	"fmt"
	"strings"
)

// header begins the file of a server. What it says of storage and addresses is the operator's to change.
const header = `# Who may say what on NATS: docs/security.md. Made by "tranche nats config".
listen: 127.0.0.1:4222
jetstream { store_dir: /var/lib/nats, max_file_store: 20GB }
max_payload: 1MB

`

// Conf writes the file of a server. Its users have the public keys given, by name; or, when there are none, the
// passwords in the server's environment that [Variable] names.
func (s *System) Conf(public map[string]string) string {
	var b strings.Builder
	b.WriteString(header + "accounts {\n")
	for i, a := range s.Accounts {
		if i > 0 {
			b.WriteString("\n")
		}
		a.conf(&b, public)
	}
	b.WriteString("}\n")
	return b.String()
}

func (a *Account) conf(b *strings.Builder, public map[string]string) {
	fmt.Fprintf(b, "  %q: {\n", a.Name)
	if a.JetStream {
		b.WriteString("    jetstream: enabled\n")
	}
	if a.MaxConnections > 0 {
		fmt.Fprintf(b, "    limits: { max_connections: %d, max_subscriptions: %d }\n", a.MaxConnections, a.MaxSubscriptions)
	}
	fmt.Fprintf(b, "    users: [ { %s%s } ]\n", a.User.identity(public), a.User.permissions())
	section(b, "exports: [", "]", a.Exports, (*Export).conf)
	section(b, "imports: [", "]", a.Imports, Import.conf)
	section(b, "mappings: {", "}", a.Mappings, func(m Mapping) string { return fmt.Sprintf("%q: %q", m.From, m.To) })
	b.WriteString("  }\n")
}

// section writes a list, if it has something in it, a line for each.
func section[T any](b *strings.Builder, begin, end string, list []T, line func(T) string) {
	if len(list) == 0 {
		return
	}
	b.WriteString("    " + begin + "\n")
	for _, each := range list {
		b.WriteString("      " + line(each) + "\n")
	}
	b.WriteString("    " + end + "\n")
}

func (u User) identity(public map[string]string) string {
	if public == nil {
		return fmt.Sprintf("user: %s, password: $%s", u.Name, Variable(u.Name))
	}
	return "nkey: " + public[u.Name]
}

// permissions are there so that a client is told what it lacks. It is the account that keeps it from having it.
func (u User) permissions() string {
	if u.Publish == nil {
		return ""
	}
	var allow []string
	for _, subject := range u.Publish {
		allow = append(allow, fmt.Sprintf("%q", subject))
	}
	return fmt.Sprintf(", permissions: {\n      publish: { allow: [\n        %s\n      ] }\n"+
		"      allow_responses: { max: 1, expires: \"1m\" }\n    }", strings.Join(allow, ",\n        "))
}

func (e *Export) conf() string {
	var to []string
	for _, name := range e.To {
		to = append(to, fmt.Sprintf("%q", name))
	}
	kind, more := "service", ""
	if e.Stream {
		kind = "stream"
	}
	if e.Many {
		more = ", response_type: stream"
	}
	if e.Threshold > 0 {
		more += fmt.Sprintf(", response_threshold: %q", e.Threshold)
	}
	return fmt.Sprintf("{ %s: %q%s, accounts: [%s] }", kind, e.Subject, more, strings.Join(to, ", "))
}

func (i Import) conf() string {
	kind, local := "service", ""
	if i.Stream {
		kind = "stream"
	}
	if i.Local != "" {
		local = fmt.Sprintf(", to: %q", i.Local)
	}
	return fmt.Sprintf("{ %s: { account: %q, subject: %q }%s }", kind, i.Account, i.Subject, local)
}
