// Package strictyaml reads the YAML that people write for Tranche: one document, of known fields, with an error at the
// place where something is wrong.
//
// [Open] refuses what such files do not need, before it is parsed: anchors, aliases, tags, merge keys, several
// documents, deep nesting, control characters, huge input. A [Value] is then taken apart by [Value.Fields],
// [Value.Entries] and [Value.List], and put into variables by the readers [Text], [Number], [Duration] and others. JSON
// is YAML, and may stand there instead.
// [OpenSecret] is for files in which passwords stand, or may stand by mistake: its errors quote nothing.
//
// Guarantees: a number is decimal digits, a text is not a number, a field stands once and is one that is known. Every
// error is an [*Error]: with the line, the column and, but for secrets, the source line, and made safe to
// print.
//
// Not its job: what values mean, and which go together.
//
// Concurrency: a [Document] belongs to one goroutine.
package strictyaml
