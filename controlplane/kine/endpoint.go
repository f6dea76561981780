package kine

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
)

// An Endpoint is where a database is. It prints without its password.
type Endpoint struct {
	// Scheme is sqlite, postgres or mysql.
	Scheme string

	text, shown string
	file        string // of SQLite
	secrets     []string
}

// What is wrong with an endpoint. Neither repeats it: there may be a password.
var (
	errScheme = errors.New("it names no database; give sqlite://PATH, postgres://USER:PASSWORD@HOST:5432/DATABASE or mysql://USER:PASSWORD@tcp(HOST:3306)/DATABASE")
	errMySQL  = errors.New("an address of MySQL is mysql://USER:PASSWORD@tcp(HOST:3306)/DATABASE or mysql://USER@unix(SOCKET)/DATABASE")
	errURL    = errors.New("an address of PostgreSQL is postgres://USER:PASSWORD@HOST:5432/DATABASE?sslmode=verify-full; write what is special in a password as %40 for @")
)

// sqlite are the parameters that are not given: what was acknowledged is on
// disk, writers wait for each other, and a start does not rewrite the file.
var sqlite = []struct{ name, value string }{
	{"_journal_mode", "WAL"}, {"_busy_timeout", "30000"}, {"_synchronous", "FULL"}, {"_txlock", "immediate"},
	{"_stmt_cache_size", "20"}, {"_kine_disable_startup_vacuum", "true"},
}

// ParseEndpoint reads an address; that of SQLite may leave out its path, which
// then is file.
func ParseEndpoint(s, file string) (Endpoint, error) {
	scheme, rest, found := strings.Cut(s, "://")
	e := Endpoint{Scheme: scheme, text: s}
	switch scheme {
	case "sqlite":
		path, params, _ := strings.Cut(rest, "?")
		if path == "" {
			path = file
		}
		path, err := filepath.Abs(path)
		if err != nil {
			return Endpoint{}, fmt.Errorf("path of SQLite: %w", err)
		}
		e.file, e.shown = path, "sqlite://"+path
		given, err := url.ParseQuery(params)
		if err != nil {
			return Endpoint{}, fmt.Errorf("parameters of SQLite: %w", err)
		}
		for _, p := range sqlite {
			if !given.Has(p.name) {
				params += "&" + p.name + "=" + p.value
			}
		}
		e.text = e.shown + "?" + strings.TrimPrefix(params, "&")
		return e, nil
	case "postgres", "postgresql":
		e.Scheme = "postgres"
		u, err := url.Parse(s)
		if !found || err != nil || rest == "" {
			return Endpoint{}, errURL
		}
		password, _ := u.User.Password()
		e.keep(password, url.QueryEscape(password), url.PathEscape(password), u.Query().Get("password"))
		if raw, _, ok := strings.Cut(rest, "@"); ok {
			_, raw, _ = strings.Cut(raw, ":")
			e.keep(raw)
		}
		e.shown = "postgres://" + u.Host + u.Path
		return e, nil
	case "mysql":
		slash := strings.LastIndex(rest, "/")
		if !found || slash < 0 {
			return Endpoint{}, errMySQL
		}
		who, where := "", rest
		if at := strings.LastIndex(rest[:slash], "@"); at >= 0 {
			who, where = rest[:at], rest[at+1:]
		}
		_, password, _ := strings.Cut(who, ":")
		e.keep(password)
		where, _, _ = strings.Cut(where, "?")
		e.shown = "mysql://" + where
		return e, nil
	}
	return Endpoint{}, errScheme
}

func (e *Endpoint) keep(secrets ...string) {
	for _, s := range secrets {
		if s != "" {
			e.secrets = append(e.secrets, s)
		}
	}
}

// String is the address without who enters.
func (e Endpoint) String() string { return e.shown }

// hide takes the address and the password out of a text.
func (e Endpoint) hide(text string) string {
	if e.text != "" {
		text = strings.ReplaceAll(text, e.text, e.shown)
	}
	for _, s := range e.secrets {
		text = strings.ReplaceAll(text, s, "xxxxx")
	}
	return text
}
