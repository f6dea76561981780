// Command images assembles the container images that the conformance suite
// runs: one OCI archive of all of them, from Go modules and Debian packages. It
// writes into a cache outside the repository, and what is there is not made
// again unless a recipe changed.
//
//	go run ./images [-cache DIR]     prints the archive's path
package main

import (
	"archive/tar"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

// recipes is what the archive's name is made of.
//
//go:embed *.go
var recipes embed.FS

func main() {
	cache := flag.String("cache", "", "`directory` for what is made (default: knarr in the user's cache directory)")
	flag.Parse()
	path, err := run(*cache)
	if err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
	fmt.Println(path)
}

func run(cache string) (string, error) {
	if cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return "", err
		}
		cache = filepath.Join(dir, "knarr")
	}
	key, err := fingerprint()
	if err != nil {
		return "", err
	}
	path := filepath.Join(cache, "images-"+key+".tar")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	work, err := os.MkdirTemp("", "knarr-images-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	if err := assemble(&sources{cache: cache}, work, path+".new"); err != nil {
		return "", err
	}
	return path, os.Rename(path+".new", path)
}

// fingerprint changes with this program.
func fingerprint() (string, error) {
	list, err := recipes.ReadDir(".")
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	for _, f := range list {
		b, err := recipes.ReadFile(f.Name())
		if err != nil {
			return "", err
		}
		sum.Write(b)
	}
	return hex.EncodeToString(sum.Sum(nil))[:12], nil
}

// assemble writes the archive at path.
func assemble(s *sources, work, path string) error {
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
