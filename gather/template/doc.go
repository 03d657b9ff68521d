// Package template fills in the URLs, headers and bodies of HTTP requests.
//
// A URL is an RFC 6570 template, as in http://127.0.0.1:8081/branches/{item.branch}{?year}. Texts and the strings in a
// JSON body have variables in braces; {{ and }} are braces. A string of a body that is one variable and nothing else
// becomes the variable's value of whatever type.
//
//	key, ordinal          of the item
//	item, item.FIELD      its payload, or a field of it, however deep: item.address.zip
//	parts.STEP.FIELD      what an earlier step has made of it
//	params.NAME           a parameter of the run; in {?…}, {&…} and {;…} of a URL NAME alone will do
//	run, step, generation
//	secret.NAME           a secret of the operator's, in headers and bodies only
//	keys, items           of the whole chunk, in requests for many items
//
// Guarantees: what is filled in cannot become anything but a value. In a URL it changes neither host nor path nor
// query: it is escaped, and never makes a segment that climbs; expansions that do not escape are refused. In a body it
// is JSON. Whoever fills in headers checks them. A variable without a value is an error, except in {?…}, {&…} and {;…},
// where it is left out; a parameter that the run does not have is an error everywhere.
//
// Concurrency: templates can be shared.
package template
