// Package corefile reads the configuration language of CoreDNS. It reads the
// texts that it is given and writes nothing.
package corefile

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
)

// A Position is a line of one of the texts.
type Position struct {
	File string
	Line int
}

// A Problem is something that was left out, and why.
type Problem struct {
	Position
	Directive, Text string
}

func (p Problem) String() string {
	return fmt.Sprintf("%s:%d: %s: %s", p.File, p.Line, p.Directive, p.Text)
}

// block is one server block as it is written.
type block struct {
	Position
	keys       []string
	directives []directive
}

// directive is a line of a server block, with the lines in its braces.
type directive struct {
	Position
	words   []string
	options []directive
}

const (
	maxText    = 512 << 10 // of all texts
	maxTokens  = 50_000
	maxBlocks  = 64
	maxImports = 100
)

// Files are the texts that an import or a directive may name, by path.
type Files map[string]string

// find gives the names that a pattern matches, in order.
func (f Files) find(pattern string) (names []string) {
	for name := range f {
		if ok, err := path.Match(pattern, name); ok && err == nil || name == pattern {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

type parser struct {
	files    Files
	snippets map[string][]token
	tokens   []token
	imports  int
	problems []Problem
}

// parse reads the text of a file; an error is one of the text as a whole.
func parse(files Files, name string) ([]block, []Problem, error) {
	size := 0
	for _, text := range files {
		size += len(text)
	}
	if size > maxText {
		return nil, nil, fmt.Errorf("the configuration has %d bytes; %d are the most", size, maxText)
	}
	tokens, err := scan(name, files[name])
	if err != nil {
		return nil, nil, err
	}
	p := &parser{files: files, snippets: map[string][]token{}, tokens: tokens}
	blocks, err := p.blocks()
	return blocks, p.problems, err
}

// line takes the tokens of the next line, with imports replaced by what they name.
func (p *parser) line() ([]token, error) {
	for len(p.tokens) > 0 {
		n := 1
		for n < len(p.tokens) && !p.tokens[n].begins {
			n++
		}
		line := p.tokens[:n]
		p.tokens = p.tokens[n:]
		if line[0].text != "import" || line[0].quoted {
			return line, nil
		}
		if err := p.insert(line); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// insert puts what an import names in its place.
func (p *parser) insert(line []token) error {
	at := Position{line[0].file, line[0].line}
	if len(line) != 2 {
		return fmt.Errorf("%s:%d: import: one pattern or snippet is wanted", at.File, at.Line)
	}
	if p.imports++; p.imports > maxImports {
		return fmt.Errorf("%s:%d: import: more than %d", at.File, at.Line, maxImports)
	}
	what := line[1].text
	found, ok := p.snippets[what]
	if !ok {
		names := p.files.find(what)
		if len(names) == 0 && !strings.ContainsAny(what, "*?[") {
			p.problems = append(p.problems, Problem{at, "import", fmt.Sprintf("there is no snippet or file %q; files are the keys of the ConfigMaps", what)})
		}
		for _, name := range names {
			tokens, err := scan(name, p.files[name])
			if err != nil {
				return err
			}
			found = append(found, tokens...)
		}
	}
	if len(found)+len(p.tokens) > maxTokens {
		return fmt.Errorf("%s:%d: import: more than %d words", at.File, at.Line, maxTokens)
	}
	p.tokens = slices.Concat(found, p.tokens)
	return nil
}

var errBraces = errors.New("a brace is missing")

// blocks reads server blocks and snippets.
func (p *parser) blocks() (all []block, _ error) {
	for {
		line, err := p.line()
		if err != nil || line == nil {
			return all, err
		}
		b := block{Position: Position{line[0].file, line[0].line}}
		for !line[len(line)-1].opens() { // keys may be on several lines
			b.keys = append(b.keys, texts(line)...)
			if line, err = p.line(); err != nil {
				return nil, err
			}
			if line == nil {
				return nil, fmt.Errorf("%s:%d: %s: %w", b.File, b.Line, strings.Join(b.keys, " "), errBraces)
			}
		}
		b.keys = append(b.keys, texts(line[:len(line)-1])...)
		if len(b.keys) == 0 || slices.ContainsFunc(b.keys, func(k string) bool { return k == "}" || k == "{" }) {
			return nil, fmt.Errorf("%s:%d: a server block begins with its zones and a brace", b.File, b.Line)
		}
		if name := b.keys[0]; len(b.keys) == 1 && strings.HasPrefix(name, "(") && strings.HasSuffix(name, ")") {
			if err := p.snippet(b, strings.Trim(name, "()")); err != nil {
				return nil, err
			}
			continue
		}
		if b.directives, err = p.directives(b.Position, 0); err != nil {
			return nil, err
		}
		if all = append(all, b); len(all) > maxBlocks {
			return nil, fmt.Errorf("%s:%d: more than %d server blocks", b.File, b.Line, maxBlocks)
		}
	}
}

// snippet keeps the tokens of a block for imports.
func (p *parser) snippet(b block, name string) error {
	depth := 1
	for i, t := range p.tokens {
		switch {
		case t.opens():
			depth++
		case t.closes():
			depth--
		}
		if depth == 0 {
			p.snippets[name] = slices.Clone(p.tokens[:i])
			p.tokens = p.tokens[i+1:]
			return nil
		}
	}
	return fmt.Errorf("%s:%d: (%s): %w", b.File, b.Line, name, errBraces)
}

// directives reads the lines up to the closing brace.
func (p *parser) directives(begin Position, depth int) (all []directive, _ error) {
	for {
		line, err := p.line()
		if err != nil {
			return nil, err
		}
		if line == nil {
			return nil, fmt.Errorf("%s:%d: %w", begin.File, begin.Line, errBraces)
		}
		if line[0].closes() {
			p.tokens = slices.Concat(line[1:], p.tokens)
			return all, nil
		}
		d := directive{Position: Position{line[0].file, line[0].line}}
		last := line[len(line)-1]
		closed := last.closes()
		if closed || last.opens() {
			line = line[:len(line)-1]
		}
		if d.words = texts(line); len(d.words) == 0 {
			return nil, fmt.Errorf("%s:%d: a brace without a directive", d.File, d.Line)
		}
		if last.opens() {
			if depth > 0 {
				return nil, fmt.Errorf("%s:%d: %s: a brace in a directive's block", d.File, d.Line, d.words[0])
			}
			if d.options, err = p.directives(d.Position, depth+1); err != nil {
				return nil, err
			}
		}
		all = append(all, d)
		if closed {
			return all, nil
		}
	}
}
