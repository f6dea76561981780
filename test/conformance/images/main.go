// Command images assembles the container images that upstream's suite runs: one
// OCI archive of those that conformance specs name, one of those that only others
// do, from Go modules, Debian packages at the address that /etc/apt has, and the
// programs of storage drivers that the user has put into the cache. It writes into
// this cache, outside the repository, and what is there is not made again unless a
// recipe or such a program changed.
//
//	go run ./images [-cache DIR] SET...     prints the archives' paths, one a line
package main

import (
	"archive/tar"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"knarr/test/conformance/programs"
)

// recipes is what the archive's name is made of.
//
//go:embed *.go shell
var recipes embed.FS

func main() {
	cache := flag.String("cache", "", "`directory` for what is made (default: knarr in the user's cache directory)")
	flag.Parse()
	for _, set := range flag.Args() {
		path, err := run(*cache, set)
		if err != nil {
			fmt.Fprintln(os.Stderr, "images:", err)
			os.Exit(1)
		}
		fmt.Println(path)
	}
}

func run(cache, set string) (string, error) {
	want, ok := sets[set]
	if !ok {
		return "", fmt.Errorf("no set %q; there are: %s", set, strings.Join(slices.Sorted(maps.Keys(sets)), " "))
	}
	cache, err := programs.Cache(cache)
	if err != nil {
		return "", err
	}
	dir := programs.Dir(cache)
	key, err := fingerprint(want, dir)
	if err != nil {
		return "", err
	}
	want, missing := present(want, dir)
	if len(missing) > 0 {
		fmt.Fprintf(os.Stderr, "images: left out of %s, since %s has no program of this name: %s; put them there, linked statically\n", set, dir, strings.Join(missing, ", "))
	}
	path := filepath.Join(cache, "images-"+set+"-"+key+".tar")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	work, err := os.MkdirTemp(cache, "knarr-images-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	made := filepath.Join(work, "images.tar") // several runs may make it at a time
	if err := assemble(&sources{cache: cache, lists: map[release]bool{}}, want, work, made); err != nil {
		return "", err
	}
	// Older recipes' archives are of no more use.
	old, err := filepath.Glob(filepath.Join(cache, "images-"+set+"-*.tar"))
	if err != nil {
		return "", err
	}
	for _, f := range old {
		if err := os.Remove(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	return path, os.Rename(made, path)
}

// present are the images that can be made, and the programs of storage drivers,
// with their versions, that the others lack.
func present(want []image, dir string) (have []image, missing []string) {
	for _, im := range want {
		if im.driver == "" || len(programs.Missing(dir, im.driver)) == 0 {
			have = append(have, im)
			continue
		}
		_, version, _ := strings.Cut(im.names[0], ":")
		missing = append(missing, im.driver+" "+version)
	}
	return have, missing
}

// fingerprint changes with this program and those of storage drivers.
func fingerprint(want []image, dir string) (string, error) {
	sum := sha256.New()
	err := fs.WalkDir(recipes, ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := recipes.ReadFile(path)
		sum.Write(b)
		return err
	})
	have, _ := present(want, dir)
	for _, im := range have {
		if im.driver == "" {
			continue
		}
		st, serr := os.Stat(filepath.Join(dir, im.driver))
		if serr != nil {
			return "", serr
		}
		fmt.Fprintf(sum, "%s %d %d\n", im.driver, st.Size(), st.ModTime().UnixNano())
	}
	return hex.EncodeToString(sum.Sum(nil))[:12], err
}

// assemble writes the archive at path.
func assemble(s *sources, images []image, work, path string) error {
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	defer out.Close()
	a := newArchive(out)
	for _, im := range images {
		for _, l := range im.layers {
			if _, ok := a.layers[l.name]; ok {
				continue
			}
			file := filepath.Join(work, filepath.Base(l.name))
			if err := writeLayer(s, l, file); err != nil {
				return fmt.Errorf("make layer %s of %s: %w", l.name, im.names[0], err)
			}
			if err := a.addLayer(l.name, file); err != nil {
				return err
			}
		}
		for _, name := range im.names {
			if err := a.addImage(name, im); err != nil {
				return err
			}
		}
	}
	if err := a.close(); err != nil {
		return err
	}
	return out.Close()
}

func writeLayer(s *sources, l layer, path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	w := &files{w: tar.NewWriter(f), seen: map[string]bool{}}
	if err := l.write(s, w); err != nil {
		return err
	}
	if err := w.w.Close(); err != nil {
		return err
	}
	return f.Close()
}
