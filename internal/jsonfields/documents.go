package jsonfields

import "bytes"

// MoreDocuments says whether a file of YAML has documents behind the first, which is the only one
// that decoders read: something else than comments behind a line that begins with ---. Pure.
func MoreDocuments(file []byte) bool {
	first, behind := false, false
	for line := range bytes.Lines(file) {
		rest, marker := bytes.CutPrefix(line, []byte("---"))
		if marker && len(rest) > 0 && !bytes.ContainsAny(rest[:1], " \t\r\n") {
			rest, marker = line, false // a word that begins so
		}
		if !marker {
			rest = line
		}
		behind = behind || marker && first
		if text := bytes.TrimSpace(rest); len(text) == 0 || text[0] == '#' || line[0] == '%' || string(text) == "..." {
			continue
		}
		if behind {
			return true
		}
		first = true
	}
	return false
}
