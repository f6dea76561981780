package imagesdir

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// A file is one of the directory.
type file struct {
	name     string
	size     int64
	modified time.Time
}

// list says that a file names images instead of holding them.
func (f file) list() bool { return strings.HasSuffix(f.name, ".txt") }

// endings are those of files that are taken: k3s' and those of xz. What is in a file says how
// it is compressed.
var endings = []string{".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.bz2", ".tbz", ".tar.lz4", ".tar.xz", ".txz", ".txt"}

func wanted(name string) bool {
	return !strings.HasPrefix(name, ".") && slices.ContainsFunc(endings, func(e string) bool { return strings.HasSuffix(name, e) })
}

// A record is what was done with a file.
type record struct {
	Size     int64     `json:"size"`
	Modified time.Time `json:"modified"`
	Images   []string  `json:"images,omitempty"`

	// failed is what went wrong, at and retry when it is tried again and after what time.
	// They are not remembered over a restart, after which everything is tried again.
	failed string
	at     time.Time
	retry  time.Duration
}

// plan says which files are to be taken now, which have gone, and when to look again.
func plan(found []file, known map[string]record, now time.Time) (todo []file, gone []string, again time.Duration) {
	again = lookAgain
	there := map[string]bool{}
	for _, f := range found {
		there[f.name] = true
		r, ok := known[f.name]
		same := ok && r.Size == f.size && r.Modified.Equal(f.modified)
		switch wait := settle - now.Sub(f.modified); {
		case same && r.retry > 0 && now.Before(r.at):
			again = min(again, r.at.Sub(now))
		case same && r.retry == 0:
		case !same && wait > 0 && wait <= settle: // it may be being written; one from the future is not waited for
			again = min(again, wait)
		default:
			todo = append(todo, f)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(known)) {
		if !there[name] {
			gone = append(gone, name)
		}
	}
	return todo, gone, again
}
