#!/bin/sh
# Stands for the work of the pages: the report that must not be made twice.
echo "report of today"
