package main

import (
	"archive/tar"
	"io"
	"os"
	"path"
)

// A layer is files under a name; an image's layers lie on each other.
type layer struct {
	name  string
	write func(s *sources, l *files) error
}

// files writes the files of one layer, each with the folders above it.
type files struct {
	w    *tar.Writer
	seen map[string]bool
}

func (f *files) header(h tar.Header) error {
	if err := f.above(h.Name); err != nil {
		return err
	}
	f.seen[path.Clean(h.Name)] = true
	return f.w.WriteHeader(&h)
}

// above writes the folders that a file is in.
func (f *files) above(name string) error {
	dir := path.Dir(path.Clean(name))
	if dir == "." || f.seen[dir] {
		return nil
	}
	return f.dir(dir, 0o755)
}

// dir makes a folder; mode has tar's bits, sticky and set-id too.
func (f *files) dir(name string, mode int64) error {
	return f.header(tar.Header{Name: name + "/", Typeflag: tar.TypeDir, Mode: mode})
}

func (f *files) link(name, target string) error {
	return f.header(tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target, Mode: 0o777})
}

func (f *files) text(name, content string) error { return f.write(name, content, 0o644) }

func (f *files) script(name, content string) error { return f.write(name, content, 0o755) }

func (f *files) write(name, content string, mode int64) error {
	if err := f.header(tar.Header{Name: name, Mode: mode, Size: int64(len(content))}); err != nil {
		return err
	}
	_, err := io.WriteString(f.w, content)
	return err
}

// copy takes a file of this machine.
func (f *files) copy(name, from string, mode int64) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	st, err := in.Stat()
	if err != nil {
		return err
	}
	if err := f.header(tar.Header{Name: name, Mode: mode, Size: st.Size()}); err != nil {
		return err
	}
	_, err = io.Copy(f.w, in)
	return err
}

// one is a layer of a single file.
func one(name string, mode int64, from func(s *sources) (string, error)) layer {
	return layer{name, func(s *sources, l *files) error {
		p, err := from(s)
		if err != nil {
			return err
		}
		return l.copy(name, p, mode)
	}}
}
