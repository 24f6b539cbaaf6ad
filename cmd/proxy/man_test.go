package main

import (
	"flag"
	"testing"

	"sluice/docs/shown"
)

var manual = flag.String("man", "", "keep the manual pages in this `directory`; make man gives it")

func TestManualPages(t *testing.T) { shown.ManualPages(t, newRoot(system{}), *manual) }
