package apiflags

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"
)

// readTokens reads upstream's form: token,user,uid[,"group,group"].
func readTokens(file string) (map[string]user.Info, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return parseTokens(file, f)
}

// parseTokens reads the lines of what is called file.
func parseTokens(file string, lines io.Reader) (map[string]user.Info, error) {
	r := csv.NewReader(lines)
	r.FieldsPerRecord = -1
	tokens := map[string]user.Info{}
	for n := 1; ; n++ {
		row, err := r.Read()
		switch {
		case errors.Is(err, io.EOF):
			return tokens, nil
		case err != nil:
			return nil, fmt.Errorf("read %s: %w", file, err)
		case len(row) < 3:
			return nil, fmt.Errorf("token file '%s' must have at least 3 columns (token, user name, user uid), found %d", file, len(row))
		case row[0] == "":
			slog.Warn("empty token has been found in token file", "file", file, "record", n)
			continue
		}
		if tokens[row[0]] != nil {
			slog.Warn("duplicate token has been found in token file", "file", file, "record", n)
		}
		who := &user.DefaultInfo{Name: row[1], UID: row[2]}
		if len(row) > 3 {
			who.Groups = strings.Split(row[3], ",")
		}
		tokens[row[0]] = who
	}
}
