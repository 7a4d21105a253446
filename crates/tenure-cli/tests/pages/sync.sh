#!/bin/sh
# Stands for the work of the pages: a job that is not to overlap itself.
echo "syncing"
