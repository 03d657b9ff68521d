// Package connections reads the operator's file of what plans may reach beyond Tranche's own services: the databases
// that they may query, the secrets that they may send and to whom, and how HTTP services are spoken to; and the
// server that takes mail.
//
//	sources:
//	  ledger:
//	    dsn: {env: LEDGER_DSN}       # or {file: /run/secrets/ledger}; never the text itself
//	    max_connections: 4
//	    max_rows: 1000000            # of a query
//	    max_bytes: 256MiB
//	    max_time: 30s
//	secrets:
//	  branch-token:
//	    file: branch.token           # or env: BRANCH_TOKEN
//	    hosts: [api.bank.example]    # https; another scheme and a port can be said: "http://127.0.0.1:8081"
//	http:
//	  allow_private: ["127.0.0.1:8081", 10.0.0.0/8]
//	  max_response: 16MiB
//	  hosts:
//	    api.bank.example: {ca: ca.pem, cert: client.pem, key: client.key, max_connections: 20}
//	smtp:
//	  server: mail.bank.example:587
//	  from: tranche@bank.example
//	  username: tranche
//	  password: {file: smtp.password}
//	  tls: starttls                # or tls, none
//	  recipients: [bank.example]   # domains that mail may go to; all when left out
//
// Plans name sources and secrets and never contain them, so whoever writes plans needs to know neither. Files that are
// named stand beside the file itself unless their path is absolute.
//
// Guarantees: an error names the file, the line, the column and the field, and quotes nothing of a value, which may be
// a password
// in the wrong place. A secret is given out for the hosts that it is meant for only. Secrets and passwords that stand
// in files are read again, so that they can be changed while a node runs.
//
// Not its job: plans, requests, queries.
//
// Concurrency: what Load returns can be shared.
package connections
