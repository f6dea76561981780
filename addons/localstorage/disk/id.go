package disk

import "strings"

// maxID is how long an ID may be: CSI's bound, and well below a file's name's.
const maxID = 128

// ID is the name of the directory of a volume: what it is called, and whose claim
// it is for, as k3s has it. The name alone tells volumes apart, so that the rest
// may be cut. Pure.
func ID(name, namespace, claim string) string {
	id := clean(name)
	for _, part := range []string{namespace, claim} {
		if part != "" {
			id += "_" + clean(part)
		}
	}
	id = strings.TrimLeft(id, ".-_") // neither hidden, nor an option
	return id[:min(len(id), maxID)]
}

// clean replaces what is more than a letter, a digit, a dot, a dash or an
// underscore.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if plain(r) {
			return r
		}
		return '-'
	}, s)
}

func plain(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' || r == '_'
}

// ValidID says whether a volume can have the ID: one name of a file, that is
// neither hidden nor leads anywhere. Pure.
func ValidID(id string) bool {
	return id != "" && len(id) <= maxID && !strings.ContainsFunc(id, func(r rune) bool { return !plain(r) }) && !strings.ContainsRune(".-_", rune(id[0]))
}
