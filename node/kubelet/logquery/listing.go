package logquery

import (
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
)

// A listing is the file system of one directory, whose files are not opened here.
type listing struct{ dir names }

func (l listing) Open(name string) (http.File, error) {
	if name != "/" {
		return nil, fs.ErrNotExist
	}
	return l.dir, nil
}

// maxNames bounds a listing: pods may write to directories below.
const maxNames = 100_000

var errTooMany = errors.New("too many names")

// names is a directory of which most names are read at most.
type names struct {
	*os.File
	most int
}

// ReadDir reads all names, which is how net/http asks for them.
func (d names) ReadDir(int) ([]fs.DirEntry, error) {
	entries, err := d.File.ReadDir(d.most + 1)
	if len(entries) > d.most {
		return nil, &fs.PathError{Op: "list", Path: d.Name(), Err: errTooMany}
	}
	if errors.Is(err, io.EOF) {
		err = nil // it is empty
	}
	return entries, err
}
